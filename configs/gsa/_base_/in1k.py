# ImageNet, as the paper says: 90 epochs, batches of 2048, cosine, crop and flip, label smoothing. Its "base learning
# rate of 0.1" is read as the rate for 256 images, which gives 0.8. What the paper does not say: warm-up (here
# MMPretrain's for this batch size), size of test images (here 256, cropped to 224), weight decay of norms and biases
# (here as of the others), Nesterov's momentum and mixed precision (here neither). The backbone and head.in_channels are
# to be added.
_base_ = ['../../_base_/classifier.py', '../../_base_/datasets/imagenet.py', '../../_base_/cls_runtime.py']
model = dict(
    backbone=dict(out_indices=(3,)), head=dict(loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'))
)
train_dataloader = dict(batch_size=256)  # on each of 8 GPUs: 2048

optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.8, momentum=0.9, weight_decay=1e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.25, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=85, begin=5, end=90),
]
train_cfg = dict(by_epoch=True, max_epochs=90, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=2048)
custom_hooks = [dict(type='SyncBuffersHook')]
