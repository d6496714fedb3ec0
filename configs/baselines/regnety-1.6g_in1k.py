_base_ = './_base_/timm_in1k.py'
model = dict(model_name='regnety_016', drop_path_rate=0.0)
