# Which token mixer in which stage, at equal cost: all rows have 15.8 to 16.4 million multiply-adds. In a narrow Swin,
# one in the first two stages, and one in the last two; mlp_ratio makes up for the cost of the token mixers. The last
# three rows are in NAT's frame.
token_mixers = {
    'swin': dict(type='WindowAttention', window_size=4),
    'elsa': dict(type='ELSA', kernel_size=5, group_width=4),
    'msf': dict(type='MeanShiftWindow', window_size=4),
    'conv': dict(type='DepthwiseConv', kernel_size=5),
    'gsa': dict(type='GlobalSelfAttention', num_heads=4),
}
swins = {
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
# Narrow forms of NAT, DiNAT and mixes/nat-shunted-t_in1k.py. Dilated neighbourhoods span the map, as in the
# paper. On the third map, which has 4 x 4 pixels, they cannot be dilated.
near = dict(type='NeighbourhoodAttention', kernel_size=3)
ghost = dict(near, ghost_size=3)
shunted = dict(type='ShuntedAttention', aggregation='linear')
plain = dict(type='MeanShiftAttention', form='plain', proj_bias=True)
nats = {
    'nat': near,
    'dinat': [dict(near, dilation=dilation) for dilation in ((1, 5), (1, 2), 1, 1)],
    'nat-shunted': [ghost, ghost, [ghost, shunted], plain],
}
arch = dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8))
frame = dict(drop_path_rate=0.0, init_cfg=None)
models = {
    **{
        name: dict(
            frame,
            type='mmattn.SwinFrame',
            arch=arch,
            attention=[token_mixers[kind] for kind in (early, early, late, late)],
            mlp_ratio=ratio,
        )
        for name, (early, late, ratio) in swins.items()
    },
    **{
        name: dict(frame, type='mmattn.NAT', arch=dict(arch, mlp_ratio=4, layer_scale=0), attention=attention)
        for name, attention in nats.items()
    },
}
