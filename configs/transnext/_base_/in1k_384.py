# Fine-tuning at 384 x 384 from the weights of 224 x 224, as in TransNeXt's code: 5 epochs at one learning rate, without
# CutMix. Test images are not cropped. The backbone, its drop path, head.in_channels and load_from are to be added.
_base_ = './in1k.py'
model = dict(train_cfg=dict(augments=dict(_delete_=True, type='Mixup', alpha=0.8)))

train_pipeline = [_base_.train_pipeline[0], dict(_base_.train_pipeline[1], scale=384), *_base_.train_pipeline[2:]]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(384, 384), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = []
train_cfg = dict(max_epochs=5)
