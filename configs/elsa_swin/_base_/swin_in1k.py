# Swin Transformer, the baseline of table 6, trained as ELSA-Swin, which the paper trains as Swin. Drop path is that of
# Swin's configs, and its tables of positions have no weight decay.
_base_ = './in1k.py'
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.relative_position': dict(decay_mult=0.0)}))
