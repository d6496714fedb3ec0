# A narrow ELSA-Swin, which trains from scratch in minutes on a CPU.
backbone = dict(
    type='mmattn.ELSASwin',
    arch=dict(embed_dim=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), group_width=4),
    drop_path_rate=0.0,
    init_cfg=None,  # PyTorch's initialisation: Swin's weights are too small for so narrow a model
)
in_channels = [32, 64, 128, 256]
