_base_ = './msf-vit-s_inat2019.py'
model = dict(backbone=dict(groups=2))
load_from = 'work_dirs/msf-vit-s-g2_in1k/epoch_100.pth'
