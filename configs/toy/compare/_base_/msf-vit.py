backbone = dict(
    type='MSFViT',
    arch=dict(embed_dim=80, depth=4, num_heads=4),
    patch_size=8,
    out_indices=(0, 1, 2, 3),
    final_norm=True,
)
channels = [80, 80, 80, 80]
# to strides 4, 8, 16, 32
pyramid = [dict(type='mmseg.Feature2Pyramid', embed_dim=80, rescales=[2, 1, 0.5, 0.25], norm_cfg=dict(type='BN'))]
