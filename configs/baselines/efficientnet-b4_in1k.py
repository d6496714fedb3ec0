_base_ = './_base_/timm_in1k.py'
model = dict(model_name='efficientnet_b4', drop_path_rate=0.0)
train_dataloader, val_dataloader = _base_.loaders[380]
test_dataloader = val_dataloader
