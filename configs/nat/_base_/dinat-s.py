# Unlike NAT-S, DiNAT-S has no layer scale.
_base_ = './dinat.py'
backbone = dict(
    type='NAT',
    arch=dict(embed_dim=96, depths=(3, 4, 18, 5), num_heads=(3, 6, 12, 24), mlp_ratio=2, layer_scale=0),
    attention=_base_.attentions.in1k,
)
in_channels = [96, 192, 384, 768]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_small_in1k_224.pth',
    ),
)
