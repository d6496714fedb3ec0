_base_ = './mask-rcnn_msf-swin-t_fpn_ms-1x_coco.py'
model = dict(backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/swin_small_patch4_window7_224.pth')))
