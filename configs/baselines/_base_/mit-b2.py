# Source: MMSegmentation's configs.
backbone = dict(type='MixVisionTransformer', embed_dims=64, num_layers=[3, 4, 6, 3], num_heads=[1, 2, 5, 8])
in_channels = [64, 128, 320, 512]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/segformer/mit_b2_20220624-66e8bf70.pth',
    ),
)
