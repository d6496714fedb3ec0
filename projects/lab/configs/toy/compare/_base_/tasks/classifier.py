# What classifiers of the toy ImageNet share. The backbone, head.in_channels and the neck are to be added.
_base_ = [
    '../schedule.py',
    '../../../../../../../configs/_base_/classifier.py',
    '../../../../_base_/datasets/toy_imagenet.py',
    '../../../../../../../configs/_base_/cls_runtime.py',
]
input_size = (64, 64)
# the first of the 1000, those in the toy ImageNet: a shape and a texture each
classes = dict(classes=[f'{shape} {texture}' for shape in range(5) for texture in range(4)])
data_preprocessor = dict(num_classes=20)
model = dict(head=dict(num_classes=20))
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(metainfo=classes),
)
val_dataloader = dict(batch_size=50, num_workers=0, persistent_workers=False, dataset=dict(metainfo=classes))
test_dataloader = val_dataloader
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=-1, save_last=False)
)
log_processor = dict(by_epoch=False)
