# VOLO itself, with outlook attention in the first stage
_base_ = './elsa-volo-d1.py'
backbone = dict(attention=None)
pretrained = dict(backbone, init_cfg=dict(checkpoint='checkpoints/d1_224_84.2.pth.tar'))
