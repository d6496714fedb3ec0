_base_ = '../gsa-r50-all_in1k.py'


def replaced(name, **settings):
    return dict(attention=dict(type=name), **settings)


def inserted(name, places, **settings):
    return dict(gsa_stages=(), insert_after=places, attention=dict(type=name, **settings))


rows = {
    'gsa': dict(),
    'stand-alone': replaced('StandAloneAttention'),
    'axial': replaced('AxialAttention', depth='m50'),
    'axial-64': replaced(
        'AxialAttention',
        depth=dict(_delete_=True, depths=(3, 4, 6, 3), stem_channels=32, base_channels=64, expansion=2),
    ),
    'aa': dict(attention=dict(type='AttentionAugmentedConv', coarse_stride=16), gsa_stages=(1, 2, 3), pool_first=True),
    'aa-101': dict(
        attention=dict(type='AttentionAugmentedConv', coarse_stride=16),
        gsa_stages=(1, 2, 3),
        pool_first=True,
        depth=101,
    ),
    'lr': dict(width_ratio=1.5625, attention=dict(type='LocalRelation', share=10)),
    'lr-101': dict(width_ratio=1.5625, attention=dict(type='LocalRelation', share=10), depth=101),
    'san-pairwise': replaced('PairwiseAttention'),
    'san-patchwise': replaced('PatchwiseAttention'),
    'efficient': inserted('EfficientAttention', [(0, 2), (1, 3)]),
    'a2': inserted('EfficientAttention', [(1, 1), (1, 3), (2, 1), (2, 3), (2, 5)], num_heads=1),
    'cgnl': inserted('CompactNonLocal', [(2, 4)]),
    'non-local': inserted('NonLocal', [(1, 1), (1, 3), (2, 1), (2, 3), (2, 5)]),
    'ccnet': inserted('CrissCrossAttention', [(3, 2)]),
    'halo': dict(attention=dict(type='HaloAttention', block_size=7)),
    'lambda': replaced('LambdaLayer'),
    'botnet': replaced('BottleneckAttention', gsa_stages=(3,)),
    'involution': replaced('Involution'),
}
row = '{{$MMATTN_ROW:gsa}}'
model = dict(backbone=rows[row])
