_base_ = './dinat.py'
backbone = dict(type='mmattn.DiNAT', arch='mini')
in_channels = [64, 128, 256, 512]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_mini_in1k_224.pth',
    ),
)
