# Small backbones of about equal cost. As classifiers of 64 x 64 images they have 32.7 to 35.5 million multiply-adds
# and 2 to 3 million parameters; mlp_ratio and the depths make up for the cost of the token mixers. At larger sizes,
# those that attend globally cost more.
swin = dict(
    type='mmattn.SwinFrame',
    # Maps of 64 x 64 images have 16 to 2 pixels a side, so the papers' windows of 7 x 7 are too large.
    arch=dict(embed_dim=32, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8)),
    window_size=4,
    drop_path_rate=0.0,
    init_cfg=None,  # PyTorch's initialisation: the papers' weights are too small for so narrow a model
)
elsa = dict(type='ELSA', kernel_size=5, group_width=8)
elsa_swin = dict(swin, type='mmattn.ELSASwin', arch=dict(swin['arch'], group_width=8), kernel_size=5, mlp_ratio=3.0)
msf_swin = dict(swin, type='mmattn.MSFSwin', mlp_ratio=3.25)
conv, gsa = dict(type='DepthwiseConv', kernel_size=5), dict(type='GlobalSelfAttention', num_heads=4)
conv_gsa = dict(swin, mlp_ratio=5.5)
near = dict(type='NeighbourhoodAttention', kernel_size=5)
nat = dict(
    type='mmattn.NAT',
    arch=dict(embed_dim=32, depths=(2, 2, 4, 2), num_heads=(1, 2, 4, 8), mlp_ratio=3, layer_scale=0),
    drop_path_rate=0.0,
    init_cfg=None,  # as swin
)
pyramid_sizes = dict(embed_dims=(32, 64, 128, 256), stem_convs=0)
shunted = dict(
    type='mmattn.ShuntedTransformer',
    arch=dict(pyramid_sizes, depths=(1, 1, 3, 1), num_heads=(2, 4, 8, 8)),
    drop_path_rate=0.0,
)
pvt_v2 = dict(shunted, arch=dict(pyramid_sizes, depths=(1, 2, 3, 1), num_heads=(1, 2, 4, 8)))
transnext = dict(
    type='mmattn.TransNeXt',
    arch=dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 3, 1), num_heads=(1, 2, 4, 8)),
    pretrain_size=48,  # the classifiers' crops
    drop_path_rate=0.0,
)
vit = dict(
    type='mmattn.MSFViT',
    arch=dict(embed_dim=160, depth=6, num_heads=5),
    patch_size=16,
    out_indices=(0, 1, 3, 5),
    final_norm=True,
)
resnet = dict(
    type='mmattn.GSAResNet',
    depth=dict(depths=(2, 2, 2, 3), stem_channels=32, base_channels=24, expansion=4),
    num_heads=4,
    img_size=64,
)
#: channels of the maps; the first key that a row's name contains counts
widths = {'vit': [160] * 4, 'resnet': [96, 192, 384, 768], '': [32, 64, 128, 256]}
