# The same backbones at the papers' sizes, and mixes as in projects/lab/configs/mixes, for a GPU.
full = dict(
    swin=dict(type='mmattn.SwinFrame', arch='tiny'),
    elsa_swin=dict(type='mmattn.ELSASwin', arch='tiny'),
    msf_swin=dict(type='mmattn.MSFSwin', arch='tiny'),
    conv=dict(type='DepthwiseConv'),
    gsa=dict(type='GlobalSelfAttention'),
    conv_gsa=dict(type='mmattn.SwinFrame', arch='tiny', mlp_ratio=4.375),
    near=dict(type='NeighbourhoodAttention'),
    nat=dict(type='mmattn.NAT', arch='tiny'),
    shunted=dict(type='mmattn.ShuntedTransformer', arch='small'),
    pvt_v2=dict(  # B2
        type='mmattn.ShuntedTransformer',
        arch=dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 6, 3), num_heads=(1, 2, 5, 8), stem_convs=0),
    ),
    transnext=dict(type='mmattn.TransNeXt', arch='tiny'),
    vit=dict(type='mmattn.MSFViT', arch='small', out_indices=(2, 5, 8, 11), final_norm=True),
    resnet=dict(type='mmattn.GSAResNet', depth=50, img_size=64),
    widths={
        'vit': [384] * 4,
        'resnet': [256, 512, 1024, 2048],
        'swin': [96, 192, 384, 768],
        'conv-gsa': [96, 192, 384, 768],
        'pvt-v2': [64, 128, 320, 512],
        'transnext': [72, 144, 288, 576],
        '': [64, 128, 256, 512],
    },
)
