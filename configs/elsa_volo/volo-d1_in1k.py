_base_ = ['./_base_/volo-d1.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.1), head=_base_.head)
optim_wrapper = dict(optimizer=dict(lr=1.6e-3))
