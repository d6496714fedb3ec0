# DINO, the detector, on DINOv3, the backbone. The pyramid gives the maps of strides 8 to 64.
_base_ = ['../../_base_/recipes/dino-4scale_12e_coco.py']
model = dict(
    backbone=dict(_delete_=True, drop_path_rate=0.1),
    neck=dict(_delete_=True, type='mmattn.detection.SimpleFeaturePyramid', scales=(2, 1, 0.5), num_outs=4),
)
