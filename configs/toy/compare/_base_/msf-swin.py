_base_ = './swin.py'
backbone = dict(
    _delete_=True,
    type='MSFSwin',
    arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8)),
    window_size=4,
    drop_path_rate=0.0,
    init_cfg=None,
)
