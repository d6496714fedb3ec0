# A narrow Shunted Transformer, which trains from scratch in minutes on a CPU.
shunted = dict(
    type='mmattn.ShuntedTransformer',
    arch=dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 16), stem_convs=0),
    drop_path_rate=0.0,
    init_cfg=None,
)
