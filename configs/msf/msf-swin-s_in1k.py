# The ImageNet classifier of table 6. The paper does not say its drop path; 0.3 is that of torchvision's Swin-S.
_base_ = ['./_base_/msf-swin-s.py', './_base_/in1k.py']
model = dict(
    backbone=dict(_base_.backbone, out_indices=(3,), shift_small_maps=False, drop_path_rate=0.3),
    head=dict(in_channels=_base_.in_channels[-1], init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02)),
)
