_base_ = ['../../_base_/models/upernet.py', '../../_base_/datasets/ade20k.py', './ade20k.py']
