# The toy COCO of projects/lab/tools/make_toy_data.py at its own size. COCO_ROOT can name the real COCO.
_base_ = '../../../../../configs/_base_/datasets/coco_instance.py'
data_root = '{{$COCO_ROOT:data/toy/coco}}'

resize = dict(type='Resize', scale=(128, 128), keep_ratio=True)
train_pipeline = [resize if step.type == 'Resize' else step for step in _base_.train_pipeline]
test_pipeline = [resize if step.type == 'Resize' else step for step in _base_.test_pipeline]

train_dataloader = dict(
    batch_size=4, dataset=dict(data_root=data_root, filter_cfg=dict(min_size=1), pipeline=train_pipeline)
)
val_dataloader = dict(dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator
