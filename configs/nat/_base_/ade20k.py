# UperNet's schedule in NAT's code: no weight decay on tables of positions, and mixed precision.
_base_ = ['../../_base_/schedules/ade20k_160k.py', '../../_base_/seg_runtime.py']
optim_wrapper = dict(type='AmpOptimWrapper', paramwise_cfg=dict(custom_keys={'.rpb': dict(decay_mult=0.0)}))
