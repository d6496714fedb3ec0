# MMATTN_ROW chooses a backbone, and MMATTN_REAL_SIZE=full those of the papers. "swin-pretrained" is "swin" with the
# weights of its classifier, which `make real` writes to MMATTN_REAL_WEIGHTS.
_base_ = './{{$MMATTN_REAL_SIZE:small}}.py'
rows = [name + start for name in _base_.models for start in ('', '-pretrained')]
row = '{{$MMATTN_ROW:swin}}'
name = row.removesuffix('-pretrained')
weights = dict(
    type='Pretrained', checkpoint='{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/' + f'{name}/model.safetensors'
)
backbone = dict(_base_.models.get(name, _base_.swin))  # starts.py has other rows
if name != row:
    backbone['init_cfg'] = weights
channels = next(width for kind, width in _base_.widths.items() if kind in name)
# necks before the FPN, to maps of stride 4, 8, 16, 32
pyramid = (
    [dict(type='mmseg.Feature2Pyramid', embed_dim=channels[0], rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='BN'))]
    if 'vit' in name
    else []
)
