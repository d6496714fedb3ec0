# The paper's baseline.
_base_ = './msf-vit-s.py'
backbone = dict(form='plain')
pretrained = dict(backbone, init_cfg=dict(checkpoint='work_dirs/vit-s_in1k/epoch_100.pth'))
