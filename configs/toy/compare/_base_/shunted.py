backbone = dict(
    type='ShuntedTransformer',
    arch=dict(embed_dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 8), stem_convs=0),
    drop_path_rate=0.0,
)
channels = [24, 48, 96, 192]
pyramid = []
