# What VOLO's script does for D5 alone: averaged weights, and test images of int(224 / 1.15) pixels with a black border.
_base_ = ['./in1k.py', './average.py']
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=194),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/CenterCrop', size=224),
    dict(type='PILToNumpy', to_bgr=True),
    _base_.test_pipeline[-1],
]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=8e-4))
custom_hooks = [*_base_.custom_hooks, _base_.average]
