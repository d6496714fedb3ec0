# VOLO itself, with outlook attention in the first stage
_base_ = './elsa-volo-d5.py'
backbone = dict(attention=None)
pretrained = dict(backbone, init_cfg=dict(checkpoint='checkpoints/d5_224_86.10.pth.tar'))
