# UperNet, 160 000 steps. Add a backbone and in_channels of the heads.
_base_ = ['../models/upernet.py', '../datasets/ade20k.py', '../schedules/ade20k_160k.py', '../seg_runtime.py']
