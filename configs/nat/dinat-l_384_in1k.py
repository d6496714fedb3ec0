_base_ = ['./_base_/dinat-l.py', './_base_/in1k_l_384.py']
model = dict(
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.in1k_384, drop_path_rate=0.35),
    head=dict(in_channels=_base_.in_channels[-1]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=1e-10))
