_base_ = './msf-vit-toy_upernet.py'
model = dict(backbone=dict(attention='plain'))
