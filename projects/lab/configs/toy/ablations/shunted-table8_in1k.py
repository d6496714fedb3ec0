# Table 8 of Shunted in a narrow form: how tokens are merged. MMATTN_ROW=linear in the environment chooses a row.
_base_ = '../compare/_base_/tasks/classifier.py'
rows = {'linear': 'linear', 'convolution': 'convolution', 'ours': 'shunted'}
row = '{{$MMATTN_ROW:ours}}'
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch=dict(embed_dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_heads=(2, 4, 8, 8), stem_convs=0),
        aggregation=rows[row],
        drop_path_rate=0.0,
        out_indices=(3,),
    ),
    head=dict(in_channels=192),
)
