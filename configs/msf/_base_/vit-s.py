# The paper's baseline.
_base_ = './msf-vit-s.py'
backbone = dict(form='plain')
pretrained = dict(checkpoint='work_dirs/msf-vit_in1k/vit-s/epoch_100.pth')
