# A narrow ELSA-VOLO, which trains from scratch in minutes on a CPU.
volo = dict(
    type='mmattn.ELSAVOLO',
    arch=dict(embed_dim=48, depths=(2, 1, 1, 1), num_heads=(2, 4), stem_dim=32, mlp_ratio=3),
    drop_path_rate=0.0,
    init_cfg=None,  # PyTorch's initialisation: VOLO's weights are too small for so narrow a model
)
# to strides 4, 8, 16, 32
pyramid = dict(type='mmseg.MultiLevelNeck', in_channels=[48, 96, 96, 96], out_channels=64, scales=[2, 2, 1, 0.5])
