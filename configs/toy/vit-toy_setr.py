_base_ = './msf-vit-toy_setr.py'
model = dict(backbone=dict(attention='plain'))
