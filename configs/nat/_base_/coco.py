# 36 epochs on COCO as in NAT's code, with a warm-up of 500 steps.
_base_ = [
    '../../_base_/datasets/coco_instance_ms.py',
    '../../_base_/schedules/coco_3x.py',
    '../../_base_/det_runtime.py',
    './decay.py',
]
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
param_scheduler = [dict(_base_.param_scheduler[0], end=500), _base_.param_scheduler[1]]
