_base_ = './mask-rcnn_gsa-r50_fpn_1x_coco.py'
model = dict(backbone=dict(depth=101, init_cfg=dict(checkpoint='torchvision://resnet101')))
