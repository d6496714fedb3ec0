# What the compared segmentors share. The environment variable MODEL names a file of _base_.
_base_ = ['./_base_/{{$MODEL:swin}}.py', './_base_/tasks/segmentor.py']
model = dict(backbone=_base_.backbone, neck=[*_base_.pyramid, dict(_base_.model.neck, in_channels=_base_.channels)])
