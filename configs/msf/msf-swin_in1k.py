# The Swins of tables 5 and 6, for 100 and for 300 epochs. MMATTN_ROW=msf-swin-s_300e chooses a row. The
# paper does not say their drop path; 0.2 and 0.3 are those of torchvision's Swin-T and Swin-S, which its script takes.
# The projections of the plain ones have biases, as torchvision's. The paper counts no biases.
_base_ = './_base_/in1k.py'
rows = {
    # 100 epochs
    'swin-t': dict(arch='tiny', form='plain', proj_bias=True, drop_path_rate=0.2),
    'msf-swin-t': dict(arch='tiny', drop_path_rate=0.2),
    'msf-swin-t-g2': dict(arch='tiny', groups=2, drop_path_rate=0.2),
    'swin-s': dict(arch='small', form='plain', proj_bias=True, drop_path_rate=0.3),
    'msf-swin-s': dict(arch='small', drop_path_rate=0.3),
    'msf-swin-s-g2': dict(arch='small', groups=2, drop_path_rate=0.3),
}
rows.update({f'{name}_300e': settings for name, settings in rows.items()})
row = '{{$MMATTN_ROW:msf-swin-t}}'
model = dict(
    backbone=dict(type='MSFSwin', out_indices=(3,), shift_small_maps=False, **rows[row]),
    head=dict(in_channels=768, init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02)),
)
param_scheduler, train_cfg = _base_.schedules[300 if row.endswith('_300e') else 100]
