# What the papers leave open, as narrow classifiers of 64 x 64 images.
msf = dict(type='MeanShiftAttention')
tied = dict(msf, sharing='QKKQQ')  # equation 11: probes are the queries, values the keys
# of the first three stages: half of the heads at a rate r, half at r / 2; the next stage has half of that, as in the
# paper. 1 is attention without merging, as in stage 4.
rates = {
    'shunted-r1': [1, 1, 1],
    'shunted-r2': [[2, 1], 1, 1],
    'shunted-r4': [[4, 2], [2, 1], 1],
    'shunted': [[8, 4], [4, 2], [2, 1]],
    # all heads at one rate
    'shunted-r4-alone': [[4], [2], 1],
    'shunted-r8-alone': [[8], [4], [2]],
    'shunted-ghost': [[8, 4], [4, 2], [2, 1]],
}
ghosts = [dict(type=kind, ghost_size=3) for kind in ['ShuntedAttention'] * 3 + ['EnhancedAttention']]
vits = {
    'msf': msf,
    'msf-ghost': dict(msf, ghost_size=3),
    'msf-2-steps': dict(msf, steps=2),
    'msf-half-step': dict(msf, step_size=0.5),
    'tied': tied,
    'tied-2-steps': dict(tied, steps=2),
    'msf-16-landmarks': dict(msf, landmarks=4),  # of 64 tokens
}
near = dict(type='NeighbourhoodAttention', kernel_size=3)
nats = {'nat': near, 'nat-ghost': dict(near, ghost_size=3)}
in_vit = dict(type='mmattn.ViTFrame', arch=dict(embed_dim=80, depth=4, num_heads=4), patch_size=8, final_norm=True)
in_nat = dict(
    type='mmattn.NAT',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8), mlp_ratio=4, layer_scale=0),
    drop_path_rate=0.0,
    out_indices=(3,),
    init_cfg=None,
)
in_shunted = dict(
    type='mmattn.ShuntedTransformer',
    arch=dict(embed_dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 8), stem_convs=0),
    attention=None,
    drop_path_rate=0.0,
    out_indices=(3,),
)
models = {
    **{name: dict(in_vit, attention=attention) for name, attention in vits.items()},
    **{name: dict(in_nat, attention=attention) for name, attention in nats.items()},
    **{name: dict(in_shunted, reductions=[*reductions, 1]) for name, reductions in rates.items()},
}
models['shunted-ghost']['attention'] = ghosts
rows = {
    name: dict(model=dict(backbone=dict(backbone, _delete_=True), head=dict(in_channels=80 if name in vits else 192)))
    for name, backbone in models.items()
}
