# MMATTN_ROW=dinat-t in the environment chooses a row. DiNAT-L was trained without mixed precision.
_base_ = ['./_base_/{{$MMATTN_ROW:nat-t}}.py', '../_base_/models/cascade-mask-rcnn_fpn.py', './_base_/coco.py']
row = '{{$MMATTN_ROW:nat-t}}'
rows = {
    'nat-m': dict(drop_path_rate=0.2, lr=1e-4),
    'nat-t': dict(drop_path_rate=0.3, lr=1e-4),
    'nat-s': dict(drop_path_rate=0.3, lr=1e-4),
    'nat-b': dict(drop_path_rate=0.5, lr=1e-4),
    'dinat-m': dict(drop_path_rate=0.2, lr=1e-4),
    'dinat-t': dict(drop_path_rate=0.3, lr=1e-4),
    'dinat-s': dict(drop_path_rate=0.5, lr=1e-4),
    'dinat-b': dict(drop_path_rate=0.6, lr=7.5e-5),
    'dinat-l': dict(drop_path_rate=0.6, lr=7.5e-5),
    'dinat_s-t': dict(drop_path_rate=0.3, lr=1e-4),
    'dinat_s-s': dict(drop_path_rate=0.5, lr=1e-4),
    'dinat_s-b': dict(drop_path_rate=0.6, lr=7.5e-5),
    'dinat_s-l': dict(drop_path_rate=0.6, lr=5e-5),
}
model = dict(
    backbone=dict(
        _base_.backbone,
        _delete_=True,
        attention=_base_.attentions.coco,
        drop_path_rate=rows[row]['drop_path_rate'],
        init_cfg=_base_.pretrained,
    ),
    neck=dict(in_channels=_base_.in_channels),
)
optim_wrapper = dict(type='OptimWrapper' if row == 'dinat-l' else 'AmpOptimWrapper', optimizer=dict(lr=rows[row]['lr']))
