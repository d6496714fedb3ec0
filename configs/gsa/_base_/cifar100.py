# Fine-tuning on CIFAR-100 as the paper says: 10 000 steps, images of 224 x 224. It does not say the augmentation: here
# it is a flip. CIFAR100_ROOT names another folder; MMPretrain downloads what is missing. The backbone, head.in_channels
# and load_from are to be added.
_base_ = ['../../_base_/classifier.py', '../../_base_/datasets/imagenet.py', '../../_base_/cls_runtime.py']
model = dict(backbone=dict(type='mmattn.GSAResNet', out_indices=(3,)), head=dict(num_classes=100, in_channels=2048))
data_root = '{{$CIFAR100_ROOT:data/cifar100}}'
data_preprocessor = dict(num_classes=100, to_rgb=False)  # the images are RGB

resize = dict(type='Resize', scale=224, backend='pillow', interpolation='bicubic')
train_pipeline = [resize, dict(type='RandomFlip', prob=0.5, direction='horizontal'), dict(type='PackInputs')]
test_pipeline = [resize, dict(type='PackInputs')]
train_dataloader = dict(
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(_delete_=True, type='CIFAR100', data_root=data_root, split='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    dataset=dict(_delete_=True, type='CIFAR100', data_root=data_root, split='test', pipeline=test_pipeline)
)
test_dataloader = val_dataloader

optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=5e-3, momentum=0.9, weight_decay=1e-4))
param_scheduler = dict(type='MultiStepLR', by_epoch=False, milestones=[3000, 6000, 9000], gamma=0.1)
train_cfg = dict(by_epoch=False, max_iters=10000, val_interval=1000)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(logger=dict(log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=1000))
log_processor = dict(by_epoch=False)
auto_scale_lr = dict(base_batch_size=128)
custom_hooks = [dict(type='SyncBuffersHook')]
