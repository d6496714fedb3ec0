# The weights are those of ImageNet-22K, which the authors fine-tune.
_base_ = './dinat.py'
backbone = dict(type='mmattn.DiNAT', arch='large')
in_channels = [192, 384, 768, 1536]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet22k/dinat_large_in22k_224.pth',
    ),
)
