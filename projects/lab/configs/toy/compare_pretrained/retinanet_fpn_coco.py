# The detectors of compare/retinanet_fpn_coco.py, started from the file that MMATTN_WEIGHTS names.
_base_ = '../compare/retinanet_fpn_coco.py'
checkpoint = '{{$MMATTN_WEIGHTS:work_dirs/distill/elsa-swin/backbone_epoch_4.pth}}'
start = dict(type='Pretrained', checkpoint=checkpoint)
rows = {
    name: dict(model=dict(row.model, backbone=dict(row.model.backbone, init_cfg=start)))
    for name, row in _base_.rows.items()
}
model = rows['swin']['model']
rows['_delete_'] = True
