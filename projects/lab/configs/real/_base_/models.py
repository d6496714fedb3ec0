# MMATTN_ROW chooses a backbone, and MMATTN_REAL_SIZE=full those of the papers. "swin-pretrained" is "swin" with the
# weights of its classifier, which `make real` writes to MMATTN_REAL_WEIGHTS.
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
rows = [name + start for name in models for start in ('', '-pretrained')]
row = '{{$MMATTN_ROW:swin}}'
name = row.removesuffix('-pretrained')
weights = dict(
    type='Pretrained', checkpoint='{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/' + f'{name}/model.safetensors'
)
backbone = dict(models.get(name, _base_.swin))  # starts.py has other rows
if name != row:
    backbone['init_cfg'] = weights
channels = next(width for kind, width in _base_.widths.items() if kind in name)
# necks before the FPN, to maps of stride 4, 8, 16, 32
pyramid = (
    [dict(type='mmseg.Feature2Pyramid', embed_dim=channels[0], rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='BN'))]
    if 'vit' in name
    else []
)
