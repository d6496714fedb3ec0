# The segmentors of compare/fpn_ade20k.py, started from the file that the environment variable MMATTN_WEIGHTS names.
_base_ = '../compare/fpn_ade20k.py'
init_cfg = dict(type='Pretrained', checkpoint='{{$MMATTN_WEIGHTS:work_dirs/distill/elsa-swin/backbone_epoch_4.pth}}')
model = dict(backbone=dict(_base_.backbone, _delete_=True, init_cfg=init_cfg))
