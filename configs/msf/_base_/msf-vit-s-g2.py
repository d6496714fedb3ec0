_base_ = './msf-vit-s.py'
backbone = dict(groups=2)
pretrained = dict(backbone, init_cfg=dict(checkpoint='work_dirs/msf-vit-s-g2_in1k/epoch_100.pth'))
