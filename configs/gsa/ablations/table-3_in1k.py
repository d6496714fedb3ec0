# Table 3 of GSA, and later attention: other token mixers in GSAResNet, with the recipe of GSA's paper. printed.yml says
# what is the paper's network and what is its token mixer in a ResNet.
_base_ = '../gsa-r50-all_in1k.py'
custom_imports = dict(imports=['mmattn_lab'])


def inserted(name, places, **settings):
    """After these blocks of a ResNet, as (group, block)."""
    return dict(type='RivalResNet', gsa_stages=(), insert_after=places, attention=dict(type=name, **settings))


def augmented(depth):
    attention = dict(type='AttentionAugmentedConv', coarse_stride=16)
    return dict(type='RivalResNet', depth=depth, gsa_stages=(1, 2, 3), pool_first=True, attention=attention)


def local_relation(depth):
    # 100 channels in the first group, not 64: inferred from the printed size
    return dict(type='RivalResNet', depth=depth, width_ratio=100 / 64, attention=dict(type='LocalRelation', share=10))


# half of the channels of Axial-ResNet-L, as in its authors' later code
axial_s = dict(_delete_=True, depths=(3, 4, 6, 3), stem_channels=32, base_channels=64, expansion=2)
every_second = [(1, 1), (1, 3), (2, 1), (2, 3), (2, 5)]
backbones = {
    # ResNet-50
    'gsa': dict(),
    'double': inserted('EfficientAttention', every_second, num_heads=1),  # Chen et al.
    'efficient': inserted('EfficientAttention', [(0, 2), (1, 3)]),  # Shen et al.
    'local-relation': local_relation(50),  # Hu et al.
    'stand-alone': dict(attention=dict(type='StandAloneAttention')),  # Ramachandran et al.
    'compact-non-local': inserted('CompactNonLocal', [(2, 4)]),  # Yue et al.
    'augmented': augmented(50),  # Bello et al.
    'patchwise': dict(attention=dict(type='PatchwiseAttention')),  # Zhao et al.
    'pairwise': dict(attention=dict(type='PairwiseAttention')),
    # ResNet-101
    'gsa-101': dict(depth=101),
    'local-relation-101': local_relation(101),
    'augmented-101': augmented(101),
    # M-ResNet-50
    'gsa-m': dict(depth='m50'),
    'axial-m': dict(depth='m50', attention=dict(type='AxialAttention')),  # Wang et al., 2020
    'axial-s': dict(depth=axial_s, attention=dict(type='AxialAttention')),
    # table 1 only: Wang et al., 2018, and Huang et al.
    'non-local': inserted('NonLocal', every_second),
    'criss-cross': inserted('CrissCrossAttention', [(3, 2)]),
    # later ones
    'bottleneck-transformer': dict(gsa_stages=(3,), num_heads=4, attention=dict(type='BottleneckAttention')),
    'lambda': dict(num_heads=4, attention=dict(type='LambdaLayer')),
    'halo': dict(attention=dict(type='HaloAttention', block_size=7)),
    'involution': dict(attention=dict(type='Involution')),
}
channels = {'gsa-m': 1152, 'axial-m': 1152, 'axial-s': 1024}
rows = {
    name: dict(model=dict(backbone=settings, head=dict(in_channels=channels.get(name, 2048))))
    for name, settings in backbones.items()
}
