# For D3 and D4.
_base_ = './in1k_ft.py'
crops = [dict(crop, scale=448) for crop in _base_.crops]
train_pipeline = [
    *_base_.train_pipeline[:-2],
    dict(type='RandomChoice', transforms=[[crop] for crop in crops]),
    _base_.train_pipeline[-1],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=466),  # int(448 / 0.96)
    dict(type='CenterCrop', crop_size=448),
    _base_.test_pipeline[-1],
]
# for D4: int(448 / 1.15), with a black border
bordered_pipeline = [
    _base_.bordered_pipeline[0],
    dict(_base_.bordered_pipeline[1], scale=389),
    _base_.bordered_pipeline[2],
    dict(_base_.bordered_pipeline[3], size=448),
    *_base_.bordered_pipeline[4:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
