_base_ = './_base_/timm_in1k.py'
model = dict(model_name='tnt_s_legacy_patch16_224')
