_base_ = './_base_/timm_in1k.py'
model = dict(model_name='twins_svt_large')
