_base_ = [
    './_base_/dinat-l-11x11.py',
    '../_base_/models/mask2former_cityscapes.py',
    '../_base_/datasets/cityscapes.py',
    '../_base_/schedules/cityscapes_90k_mask2former.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.mask2former, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
)
