# Swin's tables of positions have no weight decay.
_base_ = './decay.py'
paramwise_cfg = dict(custom_keys={'.rb': dict(decay_mult=0.0)})
