# The backbones of each size. "swin-pretrained" is "swin" with the weights of its classifier, which `make real` writes
# to MMATTN_REAL_WEIGHTS.
_base_ = ['./small.py', './full.py']
parts = dict(small={part: _base_[part] for part in _base_.full}, full=_base_.full)
merged = dict(type='ShuntedAttention', aggregation='linear')
wide = dict(type='MeanShiftAttention', form='plain', proj_bias=True)
models = {
    size: {
        'elsa-swin': of['elsa_swin'],
        'msf-swin': of['msf_swin'],
        'swin': of['swin'],
        'nat': dict(of['nat'], attention=of['near']),
        'shunted': of['shunted'],
        # the same maps as MMDetection's PVTv2, whose weights could not be published: it notes no settings
        'pvt-v2': dict(
            of['pvt_v2'], stem='convolution', feed_forward='conv', attention=dict(type='SpatialReductionAttention')
        ),
        'transnext': of['transnext'],
        'msf-vit': of['vit'],
        'vit': dict(of['vit'], form='plain'),
        'gsa-resnet': of['resnet'],
        'resnet': dict(of['resnet'], gsa_stages=()),
        'conv-gsa': dict(of['conv_gsa'], attention=[of['conv'], of['conv'], of['gsa'], of['gsa']]),
        'nat-shunted': dict(
            of['nat'],
            attention=[
                *[dict(of['near'], ghost_size=3)] * 2,
                [dict(of['near'], ghost_size=3), dict(of['near'], dilation=2), merged],
                wide,
            ],
        ),
    }
    for size, of in parts.items()
}
folder = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}'
backbones = {
    size: {
        **of,
        **{
            f'{name}-pretrained': dict(
                backbone, init_cfg=dict(type='Pretrained', checkpoint=f'{folder}/{name}/model.safetensors')
            )
            for name, backbone in of.items()
        },
    }
    for size, of in models.items()
}
channels = {
    size: {
        name: next(width for kind, width in parts[size]['widths'].items() if kind in name.removesuffix('-pretrained'))
        for name in of
    }
    for size, of in backbones.items()
}
# necks before the FPN, to maps of stride 4, 8, 16, 32
of_vit = dict(type='mmseg.Feature2Pyramid', rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='BN'))
pyramids = {
    size: {name: [dict(of_vit, embed_dim=of[name][0])] if 'vit' in name else [] for name in of}
    for size, of in channels.items()
}
