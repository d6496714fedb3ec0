# DeiT with average pooling in the place of its class token. arch is to be added.
backbone = dict(
    type='ViTFrame',
    embedding='deit',
    final_norm=True,
    drop_path_rate=0.1,
    out_indices=(11,),
    init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
)
