# Fine-tuning on CIFAR-100 as the paper says: 10 000 steps, images of 224 x 224. It does not say the augmentation: here
# it is a flip. CIFAR100_ROOT names another folder; MMPretrain downloads what is missing. The backbone, head.in_channels
# and load_from are to be added.
_base_ = ['../../_base_/classifier.py', '../../_base_/cls_runtime.py']
model = dict(backbone=dict(out_indices=(3,)), head=dict(num_classes=100))
data_root = '{{$CIFAR100_ROOT:data/cifar100}}'
data_preprocessor = dict(
    num_classes=100,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=False,  # MMPretrain reads CIFAR as RGB
)

resize = dict(type='Resize', scale=224, backend='pillow', interpolation='bicubic')
train_pipeline = [resize, dict(type='RandomFlip', prob=0.5, direction='horizontal'), dict(type='PackInputs')]
test_pipeline = [resize, dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='CIFAR100', data_root=data_root, split='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CIFAR100', data_root=data_root, split='test', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
tta_model = dict(type='AverageClsScoreTTA')
tta_pipeline = [
    resize,
    dict(
        type='TestTimeAug',
        transforms=[[dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)], [dict(type='PackInputs')]],
    ),
]

optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=5e-3, momentum=0.9, weight_decay=1e-4))
param_scheduler = dict(type='MultiStepLR', by_epoch=False, milestones=[3000, 6000, 9000], gamma=0.1)
train_cfg = dict(by_epoch=False, max_iters=10000, val_interval=1000)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1000))
log_processor = dict(by_epoch=False)
auto_scale_lr = dict(base_batch_size=128)
