# The same at 384 x 384.
_base_ = './in1k_l.py'
load, crop, *rest = _base_.train_pipeline
crops = [[dict(step, scale=384) for step in steps] for steps in crop.transforms]
train_pipeline = [load, dict(crop, transforms=crops), *rest]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=384),
    dict(_base_.test_pipeline[2], crop_size=384),
    _base_.test_pipeline[3],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
