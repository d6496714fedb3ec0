# A detector with narrow neck and heads for the toy COCO.
_base_ = [
    './_base_/elsa-swin-toy.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/toy_coco_instance.py',
    '../_base_/schedules/toy_coco.py',
    '../../../../configs/_base_/det_runtime.py',
]
strides = [4, 8, 16, 32]
model = dict(
    backbone=dict(_base_.backbone, _delete_=True),
    neck=dict(in_channels=_base_.in_channels, out_channels=64, num_outs=4),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4], strides=strides)),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, featmap_strides=strides, finest_scale=28),
        bbox_head=dict(in_channels=64, fc_out_channels=256, reg_class_agnostic=True),
        mask_roi_extractor=dict(out_channels=64, featmap_strides=strides, finest_scale=28),
        mask_head=dict(in_channels=64, conv_out_channels=64, num_convs=2),
    ),
    train_cfg=dict(rpn_proposal=dict(nms_pre=500, max_per_img=100), rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=100)),
)
default_hooks = dict(logger=dict(interval=10))
