# Small backbones of about equal cost. As classifiers of 64 x 64 images they have 32.7 to 35.8 million multiply-adds
# and 2 to 3 million parameters; mlp_ratio and the depths make up for the cost of the mechanisms. At larger sizes, those
# that attend globally cost more.
swin = dict(
    type='SwinFrame',
    # Maps of 64 x 64 images have 16 to 2 pixels a side, so the papers' windows of 7 x 7 are too large.
    arch=dict(embed_dim=32, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8)),
    window_size=4,
    drop_path_rate=0.0,
    init_cfg=None,  # PyTorch's initialisation: Swin's weights are too small for so narrow a model
)
nat = dict(
    type='NAT',
    arch=dict(embed_dim=32, depths=(2, 2, 4, 2), num_heads=(1, 2, 4, 8), mlp_ratio=3, layer_scale=0),
    stages=dict(type='NeighbourhoodAttention', kernel_size=5),
    drop_path_rate=0.0,
)
elsa = dict(type='ELSA', kernel_size=5, group_width=8)
near = dict(type='NeighbourhoodAttention', kernel_size=5)
wide = dict(type='MeanShiftAttention', attention='plain', proj_bias=True)
conv, gsa = dict(type='DepthwiseConv', kernel_size=5), dict(type='GlobalSelfAttention', num_heads=4)
pyramid_sizes = dict(embed_dims=(32, 64, 128, 256), stem_convs=0)
vit = dict(
    type='MSFViT',
    arch=dict(embed_dim=160, depth=6, num_heads=5),
    patch_size=16,
    out_indices=(0, 1, 3, 5),
    final_norm=True,
)
resnet = dict(
    type='GSAResNet',
    depth=dict(depths=(2, 2, 2, 3), stem_channels=32, base_channels=24, expansion=4),
    num_heads=4,
    img_size=64,
)
models = {
    'elsa-swin': dict(swin, type='ELSASwin', arch=dict(swin['arch'], group_width=8), kernel_size=5, mlp_ratio=3.0),
    'msf-swin': dict(swin, type='MSFSwin', mlp_ratio=3.25),
    'swin': swin,
    'nat': nat,
    'shunted': dict(
        type='ShuntedTransformer',
        arch=dict(pyramid_sizes, depths=(1, 1, 3, 1), num_heads=(2, 4, 8, 8)),
        drop_path_rate=0.0,
    ),
    # the same maps as MMDetection's PVTv2, whose weights could not be published: it notes no settings
    'pvt-v2': dict(
        type='ShuntedTransformer',
        arch=dict(pyramid_sizes, depths=(1, 2, 3, 1), num_heads=(1, 2, 4, 8)),
        stem='convolution',
        feed_forward='conv',
        attention=dict(type='SpatialReductionAttention'),
        drop_path_rate=0.0,
    ),
    'msf-vit': vit,
    'vit': dict(vit, attention='plain'),
    'gsa-resnet': resnet,
    'resnet': dict(resnet, gsa_stages=()),
    'conv-gsa': dict(swin, stages=[conv, conv, gsa, gsa], mlp_ratio=5.5),
    'nat-shunted': dict(
        nat,
        stages=[
            dict(near, ghost_size=3),
            dict(near, ghost_size=3),
            [dict(near, ghost_size=3), dict(near, dilation=2), dict(type='ShuntedAttention', aggregation='linear')],
            wide,
        ],
    ),
}
#: channels of the maps; the first key that a row's name contains counts
widths = {'vit': [160] * 4, 'resnet': [96, 192, 384, 768], '': [32, 64, 128, 256]}
