_base_ = './mask-rcnn_msf-swin-t_fpn_ms-1x_coco.py'
model = dict(backbone=dict(groups=2, init_cfg=_base_.pretrained_g2))
