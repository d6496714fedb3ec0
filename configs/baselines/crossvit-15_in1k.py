_base_ = './_base_/timm_in1k.py'
model = dict(model_name='crossvit_15_240')
train_pipeline, test_pipeline = _base_.pipelines[240]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
