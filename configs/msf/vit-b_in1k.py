_base_ = './msf-vit-b_in1k.py'
model = dict(backbone=dict(form='plain'))
