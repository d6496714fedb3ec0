# DINO, the detector, on DINOv3, the backbone. The pyramid gives the maps of strides 8 to 64.
_base_ = ['./_base_/{{$MMATTN_ROW:dinov3-s}}.py', '../_base_/recipes/dino-4scale_12e_coco.py']
row = '{{$MMATTN_ROW:dinov3-s}}'
rows = ['dinov3-s', 'dinov3-s-plus', 'dinov3-b', 'dinov3-l']
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, drop_path_rate=0.1, init_cfg=_base_.pretrained),
    neck=dict(
        _delete_=True,
        type='mmattn.detection.SimpleFeaturePyramid',
        in_channels=_base_.channels,
        scales=(2, 1, 0.5),
        num_outs=4,
    ),
)
