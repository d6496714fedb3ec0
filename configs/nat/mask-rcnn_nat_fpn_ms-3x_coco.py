# MMATTN_ROW=dinat-t in the environment chooses a row.
_base_ = ['./_base_/{{$MMATTN_ROW:nat-t}}.py', 'mmdet::_base_/models/mask-rcnn_r50_fpn.py', './_base_/coco.py']
row = '{{$MMATTN_ROW:nat-t}}'
rows = {
    'nat-m': dict(drop_path_rate=0.2),
    'nat-t': dict(drop_path_rate=0.2),
    'nat-s': dict(drop_path_rate=0.35),
    'dinat-m': dict(drop_path_rate=0.2),
    'dinat-t': dict(drop_path_rate=0.2),
    'dinat-s': dict(drop_path_rate=0.35),
    'dinat_s-t': dict(drop_path_rate=0.2),
    'dinat_s-s': dict(drop_path_rate=0.35),
}
model = dict(
    backbone=dict(
        _base_.backbone, _delete_=True, attention=_base_.attentions.coco, **rows[row], init_cfg=_base_.pretrained
    ),
    neck=dict(in_channels=_base_.in_channels),
)
