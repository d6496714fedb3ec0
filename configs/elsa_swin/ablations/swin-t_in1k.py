# Swin-T with other token mixers: tables 1 to 5 and figure 2 of ELSA.
# Drop path is that of ELSA-Swin-T, 0.1, but for the rows whose figures the paper takes from Swin's, lsa and net1, which
# have Swin-T's 0.2, and for figure 2. The paper prints no drop path. It says that the rows of figure 2 differ only in
# the heads, and lsa is one of them: all have 0.2.
_base_ = '../_base_/in1k.py'

window, elsa = dict(type='WindowAttention'), dict(type='ELSA', group_width=4)
depthwise = dict(type='DepthwiseConv')
# equation 4; Net1 is qk alone
net2 = dict(type='LocalAttention', terms=['qr'])
net3 = dict(type='LocalAttention', terms=['rk'])
net4 = dict(type='LocalAttention', terms=['b'])
net5 = dict(type='LocalAttention', terms=['qr', 'rk'])
net6 = dict(type='LocalAttention', terms=['qr', 'rk', 'b'])
net7 = dict(type='LocalAttention', terms=['qk', 'qr', 'rk', 'b'])
neighbours = dict(type='LocalAttention', terms=['qk', 'b'], area='neighbours')

backbones = {
    # table 5: the operator, in all stages but ELSA's
    'lsa': dict(attention=window, drop_path_rate=0.2),
    'dwconv': dict(attention=depthwise, drop_path_rate=0.2),
    'd-dwconv': dict(attention=dict(type='DynamicDepthwiseConv')),
    'ddf': dict(attention=dict(type='DecoupledDynamicFilter')),
    'elsa': dict(attention=[elsa, elsa, elsa, window]),
    # table 1: the parameterisation, in windows
    'net1': dict(attention=dict(type='LocalAttention', terms=['qk']), drop_path_rate=0.2),
    'net2': dict(attention=net2),
    'net3': dict(attention=net3),
    'net4': dict(attention=net4),
    'net5': dict(attention=net5),
    'net6': dict(attention=net6),
    'net7': dict(attention=net7),
    # tables 2 and 9: the normalisation of Net7. With the identity, the paper's training crashes.
    'net7-filter': dict(attention=dict(net7, norm='filter')),
    'net7-identity': dict(attention=dict(net7, norm='identity')),
    # table 3: neighbours instead of windows, but in the last stage, whose map is one window. The paper also trained
    # net7-n in sliding chunks, which compute the same: see printed.yml.
    'swin-t-n': dict(attention=[neighbours] * 3 + [window]),
    'net6-n': dict(attention=[dict(net6, area='neighbours')] * 3 + [net6]),
    'net7-n': dict(attention=[dict(net7, area='neighbours')] * 3 + [net7]),
    # table 4: Hadamard attention without the ghost head, as released and as equation 7 has it
    'hadamard': dict(attention=[dict(elsa, gamma=0.0)] * 3 + [window]),
    'hadamard-equation-7': dict(attention=[dict(elsa, gamma=0.0, hadamard='equation')] * 3 + [window]),
    # figure 2: heads. "1x" of window attention is lsa, "C" of the convolution is dwconv.
    'lsa-1-head': dict(attention=window, arch=dict(num_heads=(1, 1, 1, 1)), drop_path_rate=0.2),
    'lsa-2x-heads': dict(attention=window, arch=dict(num_heads=(6, 12, 24, 48)), drop_path_rate=0.2),
    'lsa-c-heads': dict(attention=window, arch=dict(num_heads=(96, 192, 384, 768)), drop_path_rate=0.2),
    'dwconv-1-head': dict(attention=dict(depthwise, filters=1), drop_path_rate=0.2),
    'dwconv-1x-heads': dict(attention=[dict(depthwise, filters=n) for n in (3, 6, 12, 24)], drop_path_rate=0.2),
    'dwconv-2x-heads': dict(attention=[dict(depthwise, filters=n) for n in (6, 12, 24, 48)], drop_path_rate=0.2),
}
rows = {
    name: dict(model=dict(backbone=dict(dict(drop_path_rate=0.1), **settings))) for name, settings in backbones.items()
}
model = dict(
    backbone=dict(
        type='mmattn.SwinFrame',
        arch=dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        **backbones['lsa'],
    ),
    head=dict(in_channels=768),
)
custom_hooks = [dict(type='SyncBuffersHook')]  # batch norms of d-dwconv
