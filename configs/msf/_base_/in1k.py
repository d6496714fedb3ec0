# ImageNet, trained and tested as ViT-S by MSF's paper and script, for 100 epochs. What the paper does not print is the
# script's. In the paper, batch size, Mixup and CutMix depend on the size of the model, but the supplement with the
# values is not public: here all sizes have those of ViT-S. The backbone and head.in_channels are to be added.
_base_ = [
    '../../_base_/classifier.py',
    '../../_base_/datasets/imagenet.py',
    '../../_base_/schedules/imagenet_adamw.py',
    '../../_base_/cls_runtime.py',
]
model = dict(
    head=dict(loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.2), dict(type='CutMix', alpha=0.2)]),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bilinear'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(  # DeiT III's three-augment
        type='RandomChoice',
        transforms=[
            [dict(type='torchvision/Grayscale', num_output_channels=3)],
            [dict(type='torchvision/RandomSolarize', threshold=128, p=1.0)],
            [dict(type='torchvision/GaussianBlur', kernel_size=11, sigma=(0.1, 2.0))],
        ],
    ),
    dict(type='torchvision/ColorJitter', brightness=0.3, contrast=0.3, saturation=0.3),
    dict(type='PILToNumpy', to_bgr=True),
    dict(type='PackInputs'),
]
resize = dict(type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bilinear')
test_pipeline = [_base_.test_pipeline[0], resize, *_base_.test_pipeline[2:]]
train_dataloader = dict(
    batch_size=256,  # on each of 4 GPUs: 1024
    sampler=dict(type='RepeatAugSampler'),
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# Norms and biases are decayed too.
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
# MMEngine's warm-up reaches the full rate one epoch before its end. The paper does not say whether the warm-up of 300
# epochs is longer.
schedules = {
    epochs: (
        [
            dict(type='LinearLR', start_factor=0.033, begin=0, end=11),
            dict(type='CosineAnnealingLR', T_max=epochs - 10, begin=10, end=epochs),
        ],
        dict(max_epochs=epochs),
    )
    for epochs in (100, 300)
}
param_scheduler, train_cfg = schedules[100]
