_base_ = './_base_/timm_in1k.py'
model = dict(model_name='deit_small_patch16_224')
