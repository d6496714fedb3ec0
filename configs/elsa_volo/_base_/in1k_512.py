# For D5. Its batch is not known: it is that of D3 here. ELSA averages the weights of D5, and does not say whether also
# while it fine-tunes: here it does.
_base_ = ['./in1k_ft.py', './average.py']
crops = [dict(crop, scale=512) for crop in _base_.crops]
train_pipeline = [
    *_base_.train_pipeline[:-2],
    dict(type='RandomChoice', transforms=[[crop] for crop in crops]),
    _base_.train_pipeline[-1],
]
test_pipeline = [
    _base_.bordered_pipeline[0],
    dict(_base_.bordered_pipeline[1], scale=445),  # int(512 / 1.15)
    _base_.bordered_pipeline[2],
    dict(_base_.bordered_pipeline[3], size=512),
    *_base_.bordered_pipeline[4:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
custom_hooks = [*_base_.custom_hooks, _base_.average]
