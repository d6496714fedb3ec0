# ELSA is grafted into the Swin that `make real` trained on Tiny ImageNet: the new blocks learn for an epoch, then the
# whole backbone for another, without labels. MMATTN_IMAGES names the images.
_base_ = ['./_base_/models.py', '../grafting/_base_/graft.py']
swin = dict(_base_.swin, out_indices=[3])
weights = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/swin/model.safetensors'
model = dict(
    teacher=dict(model=dict(swin, init_cfg=dict(type='Pretrained', checkpoint=weights))),
    backbone=dict(swin, stages=_base_.elsa),
)

data = dict(data_root='{{$MMATTN_IMAGES:data/real/IMagenet/tiny-imagenet-200/train}}', held_out=0.01)
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='ViewCrop', scale=48, crop_ratio_range=(0.35, 1.0))
load, *_, pack = _base_.test_pipeline
loader = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    loader, batch_sampler=dict(sizes=[dict(size=(48, 48), share=1.0)]), dataset=dict(data, pipeline=train_pipeline)
)
val_dataloader = dict(loader, batch_size=100, dataset=dict(data, pipeline=[load, pack]))
test_dataloader = val_dataloader

block_epochs, epochs = 1, 2
restart, first, second = _base_.param_scheduler
param_scheduler = [
    dict(restart, periods=[block_epochs, epochs - block_epochs], end=epochs),
    dict(first, end=0.1),
    dict(second, begin=block_epochs, end=block_epochs + 0.1),
]
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=epochs, val_interval=1)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=block_epochs))
custom_hooks = [*_base_.custom_hooks[:-1], dict(type='WholeModelHook', begin=block_epochs)]
randomness = dict(seed=0)
