# For D5: its test images have a black border, and weights are averaged, as ELSA says.
_base_ = ['./in1k.py', './average.py']
test_pipeline = _base_.bordered_pipeline
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=8e-4))
custom_hooks = [*_base_.custom_hooks, _base_.average]
