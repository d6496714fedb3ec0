# The ImageNet classifier of table 2. The paper does not print its drop path, which rises by 0.1 from size to size.
_base_ = ['./_base_/shunted-l.py', '../_base_/classifier.py']
model = dict(
    backbone=dict(_base_.backbone, out_indices=(3,), drop_path_rate=0.4), head=dict(in_channels=_base_.in_channels[-1])
)
