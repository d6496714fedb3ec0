# ImageNet, as in NAT's training script, which is timm's, like ELSA's. There the learning rate changes after each step,
# here after each epoch. Tables of positions have weight decay. A config adds the backbone, its drop path and
# head.in_channels.
_base_ = '../../elsa_swin/_base_/in1k.py'
model = dict(backbone=dict(_delete_=True, out_indices=(3,)))

test_pipeline = [_base_.test_pipeline[0], dict(_base_.test_pipeline[1], scale=256), *_base_.test_pipeline[2:]]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

param_scheduler = dict(lr_min=5e-6)
