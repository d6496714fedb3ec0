# The ImageNet classifier of table 2. Its drop path and gradient clipping are not published. Here the drop path
# continues the other sizes', which rise by 0.1, and the clipping is that of Base.
_base_ = ['./_base_/shunted-l.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.4), head=dict(in_channels=_base_.in_channels[-1]))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
