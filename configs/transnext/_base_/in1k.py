# ImageNet, trained and tested as in TransNeXt's code, whose script is PVTv2's. The backbone, its drop path and
# head.in_channels are to be added.
_base_ = ['../../shunted/_base_/in1k.py', './decay.py']
optim_wrapper = dict(clip_grad=dict(max_norm=1.0), paramwise_cfg=dict(custom_keys=_base_.no_decay))
custom_hooks = []  # There is no batch norm.
