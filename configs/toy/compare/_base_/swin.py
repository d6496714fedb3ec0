# Windows of 4 x 4 and, for ELSA, neighbourhoods of 5 x 5: the papers' 7 is too large for maps of 16 to 2 pixels.
backbone = dict(
    type='ELSASwin',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8), group_width=4),
    elsa_stages=(),
    kernel_size=5,
    window_size=4,
    drop_path_rate=0.0,
    init_cfg=None,  # PyTorch's initialisation: Swin's weights are too small for so narrow a model
)
channels = [24, 48, 96, 192]
pyramid = []  # necks before the FPN
