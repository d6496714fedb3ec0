# DeiT with average pooling in the place of its class token. Its norms have an eps of 1e-6, as in its authors' code.
# arch is to be added.
backbone = dict(
    type='mmattn.ViTFrame',
    embedding='deit',
    norm_eps=1e-6,
    final_norm=True,
    drop_path_rate=0.1,
    out_indices=(11,),
    init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
)
