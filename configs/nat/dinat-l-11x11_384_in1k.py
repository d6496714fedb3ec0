# Settings were not released: they are those of dinat-l.
_base_ = ['./_base_/dinat-l-11x11.py', './_base_/in1k_l_384.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.35), head=dict(in_channels=_base_.in_channels[-1]))
optim_wrapper = dict(optimizer=dict(weight_decay=1e-10))
