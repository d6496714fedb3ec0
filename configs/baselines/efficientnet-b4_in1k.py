_base_ = './_base_/timm_in1k.py'
model = dict(model_name='efficientnet_b4', drop_path_rate=0.0)
train_pipeline, test_pipeline = _base_.pipelines[380]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
