_base_ = './msf-swin-t.py'
backbone = dict(groups=2)
pretrained = dict(backbone, init_cfg=dict(checkpoint='work_dirs/msf-swin-t-g2_in1k/epoch_100.pth'))
