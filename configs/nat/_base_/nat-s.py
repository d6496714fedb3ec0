_base_ = './nat.py'
backbone = dict(type='mmattn.NAT', arch='small', attention=_base_.attentions.in1k)
in_channels = [96, 192, 384, 768]
pretrained = dict(
    backbone,
    init_cfg=dict(type='Pretrained', checkpoint='https://shi-labs.com/projects/nat/checkpoints/CLS/nat_small.pth'),
)
