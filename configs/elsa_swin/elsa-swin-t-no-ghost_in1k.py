# Table 4: Hadamard attention without the ghost head.
_base_ = './elsa-swin-t_in1k.py'
model = dict(backbone=dict(gamma=0.0))
