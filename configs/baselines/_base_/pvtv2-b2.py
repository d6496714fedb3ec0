# Source: MMDetection's configs.
backbone = dict(type='PyramidVisionTransformerV2', embed_dims=64, num_layers=[3, 4, 6, 3])
in_channels = [64, 128, 320, 512]
pretrained = dict(
    backbone,
    init_cfg=dict(type='Pretrained', checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b2.pth'),
)
