_base_ = './_base_/timm_in1k.py'
model = dict(model_name='crossvit_15_240')
train_dataloader, val_dataloader = _base_.loaders[240]
test_dataloader = val_dataloader
