_base_ = './msf-vit-ss_in1k.py'
model = dict(backbone=dict(form='plain'))
