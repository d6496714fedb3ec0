# The same detector, started from the classifier of elsa-swin-toy_in1k.py. The environment variable TOY_CLASSIFIER names
# another checkpoint.
_base_ = './mask-rcnn_elsa-swin-toy_fpn.py'
checkpoint = '{{$TOY_CLASSIFIER:work_dirs/elsa-swin-toy_in1k/epoch_8.pth}}'
model = dict(backbone=dict(init_cfg=dict(_delete_=True, type='Pretrained', checkpoint=checkpoint)))
