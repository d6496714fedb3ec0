# The detectors of compare/retinanet_fpn_coco.py, started from the file that MMATTN_WEIGHTS names.
_base_ = '../compare/retinanet_fpn_coco.py'
init_cfg = dict(type='Pretrained', checkpoint='{{$MMATTN_WEIGHTS:work_dirs/distill/elsa-swin/backbone_epoch_4.pth}}')
model = dict(backbone=dict(_base_.backbone, _delete_=True, init_cfg=init_cfg))
