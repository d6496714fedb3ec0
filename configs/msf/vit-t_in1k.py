_base_ = './msf-vit-t_in1k.py'
model = dict(backbone=dict(form='plain'))
