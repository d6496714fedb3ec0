# Swin's tables of positions have no weight decay.
_base_ = './decay.py'
paramwise_cfg = dict(custom_keys={'.relative_position': dict(decay_mult=0.0)})
