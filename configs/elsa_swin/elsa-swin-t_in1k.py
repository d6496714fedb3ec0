# The ImageNet classifier of table 6, which the released weights belong to. The drop path is the script's; the paper
# says "as Swin", which has 0.2.
_base_ = ['./_base_/elsa-swin-t.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.1), head=dict(in_channels=_base_.in_channels[-1]))
