# The weights are those of ImageNet-22K, which the authors fine-tune.
_base_ = './dinat.py'
backbone = dict(
    type='NAT',
    arch=dict(embed_dim=192, depths=(3, 4, 18, 5), num_heads=(6, 12, 24, 48), mlp_ratio=2, layer_scale=0),
    attention=_base_.attentions.in1k,
)
in_channels = [192, 384, 768, 1536]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet22k/dinat_large_in22k_224.pth',
    ),
)
