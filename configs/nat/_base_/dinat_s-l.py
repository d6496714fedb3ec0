# The weights are those of ImageNet-22K, which the authors fine-tune.
_base_ = './dinat_s.py'
backbone = dict(
    type='mmattn.SwinFrame',
    arch=dict(embed_dim=192, depths=(2, 2, 18, 2), num_heads=(6, 12, 24, 48)),
    attention=_base_.attentions.in1k,
)
in_channels = [192, 384, 768, 1536]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet22k/dinat_s_large_in22k_224.pth',
    ),
)
