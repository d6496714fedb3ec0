_base_ = './nat.py'
backbone = dict(type='mmattn.NAT', arch='tiny', attention=_base_.attentions.in1k)
in_channels = [64, 128, 256, 512]
pretrained = dict(
    backbone,
    init_cfg=dict(type='Pretrained', checkpoint='https://shi-labs.com/projects/nat/checkpoints/CLS/nat_tiny.pth'),
)
