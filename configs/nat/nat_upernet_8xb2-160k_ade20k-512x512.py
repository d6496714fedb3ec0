# MMATTN_ROW=dinat-t in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:nat-t}}.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    './_base_/ade20k.py',
]
row = '{{$MMATTN_ROW:nat-t}}'
rows = {
    'nat-m': dict(drop_path_rate=0.2),
    'nat-t': dict(drop_path_rate=0.3),
    'nat-s': dict(drop_path_rate=0.5),
    'nat-b': dict(drop_path_rate=0.5),
    'dinat-m': dict(drop_path_rate=0.2),
    'dinat-t': dict(drop_path_rate=0.3),
    'dinat-s': dict(drop_path_rate=0.5),
    'dinat-b': dict(drop_path_rate=0.5),
    'dinat_s-t': dict(drop_path_rate=0.3),
    'dinat_s-s': dict(drop_path_rate=0.3),
    'dinat_s-b': dict(drop_path_rate=0.3),
}
model = dict(
    backbone=dict(_base_.backbone, attention=_base_.attentions.ade20k, **rows[row], init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
