# Not in the paper: ELSA-Swin's recipe. RetinaNet reads no map of stride 4, and a pyramid of strides 4 to 32 would have
# weights for it that do not learn. So the pyramid is ViTDet's, of strides 8 to 128.
_base_ = [
    './_base_/msf-vit-s.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, final_norm=True, drop_path_rate=0.1),
    neck=dict(
        _delete_=True,
        type='mmattn.detection.SimpleFeaturePyramid',
        in_channels=_base_.in_channels[-1],
        scales=(2, 1, 0.5),
        num_outs=5,
    ),
)
