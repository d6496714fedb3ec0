# Twins-SVT of MMSegmentation, for MMDetection too. Source: MMSegmentation's configs.
backbone = dict(
    type='mmseg.SVT',
    embed_dims=[64, 128, 256, 512],
    num_heads=[2, 4, 8, 16],
    depths=[2, 2, 10, 4],
    windiow_sizes=[7, 7, 7, 7],  # MMSegmentation's spelling
    mlp_ratios=[4, 4, 4, 4],
    sr_ratios=[8, 4, 2, 1],
    qkv_bias=True,
    norm_after_stage=True,
)
in_channels = [64, 128, 256, 512]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/twins/alt_gvt_small_20220308-7e1c3695.pth',
    ),
)
