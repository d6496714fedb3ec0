# Which mechanism in which stage of a narrow Swin, at equal cost: one in the first two stages, and one in the last two.
# mlp_ratio makes up for the cost of the mechanisms: all rows have 16.0 to 16.4 million multiply-adds.
mechanisms = {
    'swin': dict(type='WindowAttention', window_size=4),
    'elsa': dict(type='ELSA', kernel_size=5, group_width=4),
    'msf': dict(type='MeanShiftWindow', window_size=4),
    'conv': dict(type='DepthwiseConv', kernel_size=5),
    'gsa': dict(type='GlobalSelfAttention', num_heads=4),
}
rows = {
    'swin': ('swin', 'swin', 4.0),
    'elsa': ('elsa', 'elsa', 4.0),
    'msf': ('msf', 'msf', 3.25),
    'conv': ('conv', 'conv', 6.0),
    'gsa': ('gsa', 'gsa', 4.5),
    'elsa-swin': ('elsa', 'swin', 3.25),
    'elsa-msf': ('elsa', 'msf', 2.75),
    'elsa-gsa': ('elsa', 'gsa', 4.0),
    'conv-swin': ('conv', 'swin', 4.75),
    'conv-msf': ('conv', 'msf', 4.25),
    'conv-gsa': ('conv', 'gsa', 5.5),
    'swin-gsa': ('swin', 'gsa', 4.75),
}
row = '{{$MMATTN_ROW:swin}}'
early, late, ratio = rows[row]
backbone = dict(
    type='SwinFrame',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8)),
    stages=[mechanisms[early], mechanisms[early], mechanisms[late], mechanisms[late]],
    mlp_ratio=ratio,
    drop_path_rate=0.0,
    init_cfg=None,
)
