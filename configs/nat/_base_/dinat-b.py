_base_ = './dinat.py'
backbone = dict(type='mmattn.DiNAT', arch='base')
in_channels = [128, 256, 512, 1024]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_base_in1k_224.pth',
    ),
)
