# Neighbourhoods of 3 x 3: the paper's 7 is too large for maps of 16 to 2 pixels.
_base_ = './swin.py'
backbone = dict(
    _delete_=True,
    type='NAT',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8), mlp_ratio=4, layer_scale=0),
    attention=dict(type='NeighbourhoodAttention', kernel_size=3),
    drop_path_rate=0.0,
    init_cfg=None,
)
