_base_ = './_base_/timm_in1k.py'
model = dict(model_name='cait_m36_384', img_size=448)
train_pipeline, test_pipeline = _base_.pipelines[448]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
