_base_ = './_base_/timm_in1k.py'
model = dict(model_name='cait_m48_448')
train_dataloader, val_dataloader = _base_.loaders[448]
test_dataloader = val_dataloader
