backbone = dict(
    type='GSAResNet',
    depth=dict(depths=(1, 2, 2, 1), stem_channels=32, base_channels=24, expansion=4),
    num_heads=4,
    img_size=64,
)
channels = [96, 192, 384, 768]
pyramid = []
