_base_ = '../../elsa_swin/_base_/swin-s.py'
