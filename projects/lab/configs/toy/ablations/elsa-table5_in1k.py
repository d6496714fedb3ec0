# Table 5 of ELSA in a narrow Swin: the operator, in all stages but ELSA's.
# Sides are those of configs/toy/compare/_base_/models.py.
_base_ = '../compare/_base_/tasks/classifier.py'
window = dict(type='WindowAttention', window_size=4)
elsa = dict(type='ELSA', kernel_size=5, group_width=4)
attentions = {
    'lsa': window,
    'dwconv': dict(type='DepthwiseConv', kernel_size=5),
    'd-dwconv': dict(type='DynamicDepthwiseConv', kernel_size=5),
    'ddf': dict(type='DecoupledDynamicFilter', kernel_size=5),
    'elsa': [elsa, elsa, elsa, window],
}
rows = {
    name: dict(model=dict(backbone=dict(attention=dict(kind, _delete_=True) if isinstance(kind, dict) else kind)))
    for name, kind in attentions.items()
}
model = dict(
    backbone=dict(
        type='mmattn.SwinFrame',
        arch=dict(embed_dim=24, depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8)),
        attention=window,
        drop_path_rate=0.0,
        out_indices=(3,),
        init_cfg=None,
    ),
    head=dict(in_channels=192),
)
