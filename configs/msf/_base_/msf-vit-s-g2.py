_base_ = './msf-vit-s.py'
backbone = dict(groups=2)
pretrained = dict(checkpoint='work_dirs/msf-vit_in1k/msf-vit-s-g2/epoch_100.pth')
