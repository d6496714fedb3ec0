_base_ = './nat.py'
backbone = dict(type='mmattn.NAT', arch='base', attention=_base_.attentions.in1k)
in_channels = [128, 256, 512, 1024]
pretrained = dict(
    backbone,
    init_cfg=dict(type='Pretrained', checkpoint='https://shi-labs.com/projects/nat/checkpoints/CLS/nat_base.pth'),
)
