backbone = dict(
    type='mmdet.PyramidVisionTransformerV2',
    embed_dims=24,
    num_layers=(1, 2, 2, 1),
    num_heads=(1, 2, 4, 8),
    drop_path_rate=0.0,
)
channels = [24, 48, 96, 192]
pyramid = []
