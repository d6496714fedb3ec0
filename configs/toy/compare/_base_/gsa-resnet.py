backbone = dict(
    type='GSAResNet',
    depth=dict(depths=(1, 2, 2, 1), stem_channels=32, base_channels=20, expansion=4),
    num_heads=4,
    img_size=64,
)
channels = [80, 160, 320, 640]
pyramid = []
