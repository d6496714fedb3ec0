# The paper's baseline.
_base_ = './msf-vit-s_inat2019.py'
model = dict(backbone=dict(attention='plain'))
load_from = 'work_dirs/vit-s_in1k/epoch_100.pth'
