# The backbones, and with MMATTN_REAL_SIZE=full those of the papers. "swin-pretrained" is "swin" with the weights of its
# classifier, which `make real` writes to MMATTN_REAL_WEIGHTS.
_base_ = './{{$MMATTN_REAL_SIZE:small}}.py'
conv, gsa, near = _base_.conv, _base_.gsa, _base_.near
ghost, dilated = dict(near, ghost_size=3), dict(near, dilation=2)
merged = dict(type='ShuntedAttention', aggregation='linear')
wide = dict(type='MeanShiftAttention', form='plain', proj_bias=True)
models = {
    'elsa-swin': _base_.elsa_swin,
    'msf-swin': _base_.msf_swin,
    'swin': _base_.swin,
    'nat': _base_.nat,
    'shunted': _base_.shunted,
    # the same maps as MMDetection's PVTv2, whose weights could not be published: it notes no settings
    'pvt-v2': dict(
        _base_.pvt_v2, stem='convolution', feed_forward='conv', attention=dict(type='SpatialReductionAttention')
    ),
    'msf-vit': _base_.vit,
    'vit': dict(_base_.vit, form='plain'),
    'gsa-resnet': _base_.resnet,
    'resnet': dict(_base_.resnet, gsa_stages=()),
    'conv-gsa': dict(_base_.conv_gsa, attention=[conv, conv, gsa, gsa]),
    'nat-shunted': dict(_base_.nat, attention=[ghost, ghost, [ghost, dilated, merged], wide]),
}
folder = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}'
of_classifiers = {
    f'{name}-pretrained': dict(
        backbone, init_cfg=dict(type='Pretrained', checkpoint=f'{folder}/{name}/model.safetensors')
    )
    for name, backbone in models.items()
}
backbones = {**models, **of_classifiers}
channels = {
    name: next(width for kind, width in _base_.widths.items() if kind in name.removesuffix('-pretrained'))
    for name in backbones
}
# necks before the FPN, to maps of stride 4, 8, 16, 32
of_vit = dict(type='mmseg.Feature2Pyramid', rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='BN'))
pyramids = {name: [dict(of_vit, embed_dim=channels[name][0])] if 'vit' in name else [] for name in backbones}
