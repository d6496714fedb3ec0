# Fine-tuning at 384 x 384 from the weights of 224 x 224. The paper prints 30 epochs. Its first author says that it was
# done as in Swin: the other settings are Swin's. Augmentation and drop path are those of 224. The backbone, its drop
# path, head.in_channels and load_from are to be added.
_base_ = './in1k.py'

train_pipeline = [_base_.train_pipeline[0], dict(_base_.train_pipeline[1], scale=384), *_base_.train_pipeline[2:]]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=384, backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(
    accumulative_counts=2,  # on each of 8 GPUs: 1024
    optimizer=dict(lr=4e-5, weight_decay=1e-8),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=4e-7, T_max=25, begin=5, end=30, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size=512)  # MMEngine does not count accumulated steps
train_cfg = dict(max_epochs=30)
