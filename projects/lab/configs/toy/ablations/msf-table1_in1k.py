# Rows of MSF's table 1 in a narrow ViT: which projections share a matrix.
_base_ = '../compare/_base_/tasks/classifier.py'
sharing = {'a': 'QQQQQ', 'b': 'QKKQQ', 'f': 'QKKKQ', 'o': 'QKVPP', 'r': 'QKVPW'}
rows = {name: {'model.backbone.sharing': shared} for name, shared in sharing.items()}
model = dict(
    backbone=dict(
        type='mmattn.MSFViT',
        arch=dict(embed_dim=80, depth=4, num_heads=4),
        patch_size=8,
        sharing='QKVPW',
        final_norm=True,
    ),
    head=dict(in_channels=80),
)
