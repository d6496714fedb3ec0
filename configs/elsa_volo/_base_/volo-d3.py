# VOLO itself, with outlook attention in the first stage
_base_ = './elsa-volo-d3.py'
backbone = dict(attention=None)
pretrained = dict(backbone, init_cfg=dict(checkpoint='checkpoints/d3_224_85.4.pth.tar'))
