_base_ = './msf-vit-s_in1k.py'
model = dict(backbone=dict(form='plain'))
