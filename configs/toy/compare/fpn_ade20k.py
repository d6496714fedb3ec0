# What the compared segmentors share. The environment variable MMATTN_ROW names a file of _base_.
_base_ = ['./_base_/{{$MMATTN_ROW:swin}}.py', './_base_/rows.py', './_base_/tasks/segmentor.py']
row = '{{$MMATTN_ROW:swin}}'
model = dict(backbone=_base_.backbone, neck=[*_base_.pyramid, dict(_base_.model.neck, in_channels=_base_.channels)])
