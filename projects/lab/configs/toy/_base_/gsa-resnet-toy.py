# A narrow GSA-ResNet, which trains from scratch in minutes on a CPU.
gsa_resnet = dict(
    type='mmattn.GSAResNet',
    depth=dict(depths=(1, 1, 2, 1), stem_channels=32, base_channels=16, expansion=2),
    num_heads=4,
    img_size=128,
)
