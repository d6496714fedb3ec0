# The ViTs of tables 5 and 6, for 100 and for 300 epochs. MMATTN_ROW=msf-vit-s-g2_300e in the environment chooses a row.
_base_ = './_base_/in1k.py'
rows = {
    # 100 epochs
    'vit-t': dict(arch='tiny', form='plain'),
    'msf-vit-t': dict(arch='tiny'),
    'msf-vit-t-g2': dict(arch='tiny', groups=2),
    'vit-ss': dict(arch='ss', form='plain'),
    'msf-vit-ss': dict(arch='ss'),
    'msf-vit-ss-g2': dict(arch='ss', groups=2),
    'vit-s': dict(arch='small', form='plain'),
    'msf-vit-s': dict(arch='small'),
    'msf-vit-s-g2': dict(arch='small', groups=2),
    'vit-b': dict(arch='base', form='plain'),
    'msf-vit-b': dict(arch='base'),
    'msf-vit-b-g2': dict(arch='base', groups=2),
}
rows.update({f'{name}_300e': settings for name, settings in rows.items()})
row = '{{$MMATTN_ROW:msf-vit-s}}'
widths = dict(tiny=192, ss=384, small=384, base=768)
model = dict(
    backbone=dict(type='MSFViT', **rows[row]),
    head=dict(type='NormLinearClsHead', in_channels=widths[rows[row]['arch']]),
)
param_scheduler, train_cfg = _base_.schedules[300 if row.endswith('_300e') else 100]
