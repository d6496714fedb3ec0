# The segmentors of compare/fpn_ade20k.py, started from the file that the environment variable WEIGHTS names.
_base_ = '../compare/fpn_ade20k.py'
init_cfg = dict(type='Pretrained', checkpoint='{{$WEIGHTS:work_dirs/distill/backbone_epoch_4.pth}}')
model = dict(backbone=dict(_base_.backbone, _delete_=True, init_cfg=init_cfg))
