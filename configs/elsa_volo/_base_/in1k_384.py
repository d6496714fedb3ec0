# For D1.
_base_ = './in1k_ft.py'
crops = [dict(crop, scale=384) for crop in _base_.crops]
train_pipeline = [
    *_base_.train_pipeline[:-2],
    dict(type='RandomChoice', transforms=[[crop] for crop in crops]),
    _base_.train_pipeline[-1],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=400),  # int(384 / 0.96)
    dict(type='CenterCrop', crop_size=384),
    _base_.test_pipeline[-1],
]
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))  # on each of 8 GPUs: 512
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
auto_scale_lr = dict(base_batch_size=512)
