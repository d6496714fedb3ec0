# A narrow TransNeXt, which trains from scratch in minutes on a CPU.
transnext = dict(
    type='mmattn.TransNeXt',
    arch=dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 16)),
    img_size=128,
    drop_path_rate=0.0,
)
