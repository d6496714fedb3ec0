_base_ = './msf-swin-t.py'
backbone = dict(groups=2)
pretrained = dict(checkpoint='work_dirs/msf-swin_in1k/msf-swin-t-g2/epoch_100.pth')
