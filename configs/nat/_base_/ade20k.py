# UperNet's schedule as by NAT's code: tables of positions are not decayed, and precision is mixed.
_base_ = ['../../_base_/schedules/ade20k_160k.py', '../../_base_/seg_runtime.py']
optim_wrapper = dict(type='AmpOptimWrapper', paramwise_cfg=dict(custom_keys={'.rpb': dict(decay_mult=0.0)}))
