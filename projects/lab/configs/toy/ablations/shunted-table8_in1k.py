# Table 8 of Shunted in a narrow form: how tokens are merged.
_base_ = '../compare/_base_/tasks/classifier.py'
kinds = {'linear': 'linear', 'convolution': 'convolution', 'ours': 'shunted'}
rows = {name: {'model.backbone.aggregation': kind} for name, kind in kinds.items()}
model = dict(
    backbone=dict(
        type='mmattn.ShuntedTransformer',
        arch=dict(embed_dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 8), stem_convs=0),
        aggregation='shunted',
        drop_path_rate=0.0,
        out_indices=(3,),
    ),
    head=dict(in_channels=192),
)
