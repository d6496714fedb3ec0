_base_ = './_base_/timm_in1k.py'
model = dict(model_name='cait_m36_384', img_size=448)
train_dataloader, val_dataloader = _base_.loaders[448]
test_dataloader = val_dataloader
