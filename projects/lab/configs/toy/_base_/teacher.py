# A GSA-ResNet of two groups: the map of a teacher of toy images has stride 8.
teacher = dict(
    type='mmattn.GSAResNet',
    depth=dict(depths=(2, 4), stem_channels=48, base_channels=48, expansion=4),
    gsa_stages=(1,),
    num_heads=4,
    img_size=64,
    out_indices=(1,),
)
