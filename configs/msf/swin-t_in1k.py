# The projections have biases, as torchvision's. The paper counts no biases.
_base_ = './msf-swin-t_in1k.py'
model = dict(backbone=dict(form='plain', proj_bias=True))
