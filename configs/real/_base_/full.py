# The same rows at the papers' sizes, for a GPU. The mixes are those of configs/mixes.
swin = dict(type='SwinFrame', arch='tiny')
elsa, near = dict(type='ELSA'), dict(type='NeighbourhoodAttention')
nat = dict(type='NAT', arch='tiny', stages=near)
wide = dict(type='MeanShiftAttention', attention='plain', proj_bias=True)
conv, gsa = dict(type='DepthwiseConv'), dict(type='GlobalSelfAttention')
vit = dict(type='MSFViT', arch='small', out_indices=(2, 5, 8, 11), final_norm=True)
resnet = dict(type='GSAResNet', depth=50, img_size=64)
models = {
    'elsa-swin': dict(type='ELSASwin', arch='tiny'),
    'msf-swin': dict(type='MSFSwin', arch='tiny'),
    'swin': swin,
    'nat': nat,
    'shunted': dict(type='ShuntedTransformer', arch='small'),
    'pvt-v2': dict(  # B2
        type='ShuntedTransformer',
        arch=dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 6, 3), num_heads=(1, 2, 5, 8), stem_convs=0),
        stem='convolution',
        feed_forward='conv',
        attention=dict(type='SpatialReductionAttention'),
    ),
    'msf-vit': vit,
    'vit': dict(vit, attention='plain'),
    'gsa-resnet': resnet,
    'resnet': dict(resnet, gsa_stages=()),
    'conv-gsa': dict(swin, stages=[conv, conv, gsa, gsa], mlp_ratio=4.375),
    'nat-shunted': dict(
        nat,
        stages=[
            dict(near, ghost_size=3),
            dict(near, ghost_size=3),
            [dict(near, ghost_size=3), dict(near, dilation=2), dict(type='ShuntedAttention', aggregation='linear')],
            wide,
        ],
    ),
}
widths = {
    'vit': [384] * 4,
    'resnet': [256, 512, 1024, 2048],
    'swin': [96, 192, 384, 768],
    'conv-gsa': [96, 192, 384, 768],
    'pvt-v2': [64, 128, 320, 512],
    '': [64, 128, 256, 512],
}
