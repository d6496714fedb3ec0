_base_ = './_base_/timm_in1k.py'
model = dict(model_name='deit_base_patch16_384')
train_dataloader, val_dataloader = _base_.loaders[384]
test_dataloader = val_dataloader
