# The segmentors of compare/fpn_ade20k.py, started from the file that the environment variable MMATTN_WEIGHTS names.
_base_ = '../compare/fpn_ade20k.py'
checkpoint = '{{$MMATTN_WEIGHTS:work_dirs/distill/elsa-swin/backbone_epoch_4.pth}}'
start = dict(type='Pretrained', checkpoint=checkpoint)
rows = {
    name: dict(model=dict(row.model, backbone=dict(row.model.backbone, init_cfg=start)))
    for name, row in _base_.rows.items()
}
model = rows['swin']['model']
rows['_delete_'] = True
