# The compared backbones. Windows of 4 x 4 and neighbourhoods of 5 x 5 or 3 x 3: the papers' 7 is too large for maps of
# 16 to 2 pixels.
narrow = dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8))
# init_cfg=None is PyTorch's initialisation: Swin's weights are too small for so narrow a model.
windows = dict(window_size=4, drop_path_rate=0.0, init_cfg=None)
swin = dict(windows, type='mmattn.ELSASwin', arch=dict(narrow, group_width=4), elsa_stages=(), kernel_size=5)
vit = dict(
    type='mmattn.MSFViT',
    arch=dict(embed_dim=80, depth=4, num_heads=4),
    patch_size=8,
    out_indices=(0, 1, 2, 3),
    final_norm=True,
)
resnet = dict(
    type='mmattn.GSAResNet',
    depth=dict(depths=(1, 2, 2, 1), stem_channels=32, base_channels=20, expansion=4),
    num_heads=4,
    img_size=64,
)
models = {
    'elsa-swin': dict(swin, elsa_stages=(0, 1, 2)),
    'msf-swin': dict(windows, type='mmattn.MSFSwin', arch=narrow),
    'swin': swin,
    'nat': dict(
        type='mmattn.NAT',
        arch=dict(narrow, mlp_ratio=4, layer_scale=0),
        attention=dict(type='NeighbourhoodAttention', kernel_size=3),
        drop_path_rate=0.0,
        init_cfg=None,
    ),
    'shunted': dict(
        type='mmattn.ShuntedTransformer',
        arch=dict(embed_dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 8), stem_convs=0),
        drop_path_rate=0.0,
    ),
    'pvt-v2': dict(
        type='mmdet.PyramidVisionTransformerV2',
        embed_dims=24,
        num_layers=(1, 2, 2, 1),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.0,
    ),
    'msf-vit': vit,
    'vit': dict(vit, form='plain'),
    'gsa-resnet': resnet,
    'resnet': dict(resnet, gsa_stages=()),
}
channels = {
    name: [80] * 4 if 'vit' in name else [80, 160, 320, 640] if 'resnet' in name else [24, 48, 96, 192]
    for name in models
}
# necks before the FPN: the maps of ViTs to strides 4, 8, 16, 32
of_vit = dict(type='mmseg.Feature2Pyramid', embed_dim=80, rescales=[2, 1, 0.5, 0.25], norm_cfg=dict(type='BN'))
pyramids = {name: [of_vit] if 'vit' in name else [] for name in models}
