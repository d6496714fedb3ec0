# ImageNet, trained and tested as by NAT's script, which is timm's, as ELSA's. The script sets the rate after each step,
# here it is set after each epoch. Tables of positions are decayed. The backbone, its drop path and head.in_channels are
# to be added.
_base_ = '../../elsa_swin/_base_/in1k.py'
model = dict(backbone=dict(_delete_=True, out_indices=(3,)))

test_pipeline = [_base_.test_pipeline[0], dict(_base_.test_pipeline[1], scale=256), *_base_.test_pipeline[2:]]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

param_scheduler = dict(lr_min=5e-6)
