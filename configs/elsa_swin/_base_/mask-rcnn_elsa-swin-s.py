_base_ = './mask-rcnn_elsa-swin-t.py'
model = dict(backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/elsa_swin_small.pth')))
