# The toy COCO without masks.
_base_ = './toy_coco_instance.py'

boxes = dict(type='LoadAnnotations', with_bbox=True)
train_pipeline = [boxes if step.type == 'LoadAnnotations' else step for step in _base_.train_pipeline]
test_pipeline = [boxes if step.type == 'LoadAnnotations' else step for step in _base_.test_pipeline]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
