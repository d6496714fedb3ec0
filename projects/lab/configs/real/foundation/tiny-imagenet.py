# Linear classifiers of the mean of one map of the frozen ViT-S/14 on a tenth of Tiny ImageNet's training photos, and on
# a quarter of those of validation. The photos are enlarged to 98 x 98, which are 7 x 7 patches. A row is the block.
_base_ = ['../tiny-imagenet.py', './_base_/focus.py']
input_size = (98, 98)
rows = {
    **{f'block-{index + 1}': {'model.backbone.backbone.out_indices': [index]} for index in (5, 8, 11)},
    '_delete_': True,  # those of the base
}
model = dict(backbone=_base_.frozen, neck=[dict(type='GlobalAveragePooling')], head=dict(in_channels=384))
train_pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=98), dict(type='PackInputs')]
test_pipeline = train_pipeline
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, indices=list(range(0, 100_000, 10))))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline, indices=list(range(0, 10_000, 4))))
test_dataloader = val_dataloader
steps, warm_up = 500, 50
param_scheduler = [dict(_base_.rise, end=warm_up), dict(_base_.fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
