# Unlike NAT-S, DiNAT-S has no layer scale.
_base_ = './dinat.py'
backbone = dict(type='mmattn.DiNAT', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_small_in1k_224.pth',
    ),
)
