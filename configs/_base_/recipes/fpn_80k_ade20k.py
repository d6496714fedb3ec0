# Semantic FPN, 80 000 steps. Add a backbone and neck.in_channels.
_base_ = ['../models/semantic-fpn.py', '../datasets/ade20k.py', '../schedules/ade20k_80k.py', '../seg_runtime.py']
