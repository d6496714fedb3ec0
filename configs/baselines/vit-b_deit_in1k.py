_base_ = './_base_/timm_in1k.py'
model = dict(model_name='vit_base_patch16_224')
