_base_ = '../../elsa_swin/_base_/swin-b.py'
