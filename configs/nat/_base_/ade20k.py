# UperNet's schedule in NAT's code, with mixed precision.
_base_ = ['../../_base_/schedules/ade20k_160k.py', '../../_base_/seg_runtime.py', './decay.py']
optim_wrapper = dict(type='AmpOptimWrapper', paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
