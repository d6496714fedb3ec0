# Small models of the toy ImageNet, and the source that each can start from.
swin = dict(
    type='mmattn.SwinFrame',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8)),
    window_size=4,
    drop_path_rate=0.0,
    out_indices=(3,),
    init_cfg=None,
)
vit = dict(
    type='mmattn.ViTFrame',
    arch=dict(embed_dim=80, depth=4, num_heads=4),
    embedding='deit',
    img_size=64,
    patch_size=8,
    final_norm=True,
)
resnet = dict(
    type='mmattn.GSAResNet',
    depth=dict(depths=(1, 2, 2, 1), stem_channels=32, base_channels=20, expansion=4),
    gsa_stages=(),
    num_heads=4,
    img_size=64,
    out_indices=(3,),
)
mmdet_pvt = dict(
    type='mmdet.PyramidVisionTransformerV2',
    embed_dims=24,
    num_layers=(1, 2, 2, 1),
    num_heads=(1, 2, 4, 8),
    drop_path_rate=0.0,
    out_indices=(3,),
)
pvt_sizes = dict(embed_dims=(24, 48, 96, 192), depths=(1, 2, 2, 1), stem_convs=0)
shunted = dict(
    type='mmattn.ShuntedTransformer',
    arch=dict(pvt_sizes, num_heads=(2, 2, 4, 8)),
    stem='convolution',
    drop_path_rate=0.0,
    out_indices=(3,),
)
pvt = dict(
    shunted,
    arch=dict(pvt_sizes, num_heads=(1, 2, 4, 8)),
    feed_forward='conv',
    attention=dict(type='SpatialReductionAttention'),
)
near = dict(type='NeighbourhoodAttention', kernel_size=3)
nat = dict(
    type='mmattn.NAT',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8), mlp_ratio=4, layer_scale=0),
    attention=near,
    drop_path_rate=0.0,
    out_indices=(3,),
    init_cfg=None,
)
ghost = dict(near, ghost_size=3)
in_turn = [ghost, dict(type='ShuntedAttention', aggregation='linear')]
plain = dict(type='MeanShiftAttention', form='plain', proj_bias=True)
#: model -> its source, its backbone, and ``warm_start``
models = {
    'swin': ('swin', swin, False),
    'msf-swin': ('swin', dict(swin, attention=dict(type='MeanShiftWindow', proj_bias=True)), True),
    'ghost-swin': ('swin', dict(swin, attention=dict(type='WindowAttention', ghost_size=5)), True),
    'net7-swin': ('swin', dict(swin, attention=dict(type='LocalAttention', terms=('qk', 'qr', 'rk', 'b'))), True),
    'elsa-swin': ('swin', dict(swin, attention=dict(type='ELSA', kernel_size=5, group_width=4)), True),
    'vit': ('vit', vit, False),
    'msf-vit': ('vit', dict(vit, attention=dict(type='MeanShiftAttention', proj_bias=True)), True),
    'ghost-head-vit': ('vit', dict(vit, attention=dict(type='GhostHeadAttention')), True),
    'neighbourhood-vit': ('vit', dict(vit, attention=[None, near] * 2), True),
    'shunted-vit': ('vit', dict(vit, attention=[None, dict(type='ShuntedAttention')] * 2), True),
    'resnet': ('resnet', resnet, False),
    'gsa-beside-resnet': ('resnet', dict(resnet, gsa_stages=(1, 2, 3), keep_conv=True), True),
    'gsa-resnet': ('resnet', dict(resnet, gsa_stages=(1, 2, 3)), True),
    'mmdet-pvt': ('mmdet-pvt', mmdet_pvt, False),
    'pvt': ('mmdet-pvt', pvt, False),
    'shunted': ('mmdet-pvt', shunted, True),
    'nat': ('nat', nat, False),
    'ghost-nat': ('nat', dict(nat, attention=ghost), True),
    'nat-shunted': ('nat', dict(nat, attention=[ghost, ghost, in_turn, plain]), True),
}
