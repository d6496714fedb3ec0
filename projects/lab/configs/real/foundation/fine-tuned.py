# The ViT-S/14 trained on CamVid under a Semantic FPN: the views and steps of projects/lab/configs/real/camvid.py, with
# crops of 18 x 18 patches. The learning rate falls from block to block towards the stem.
_base_ = ['./camvid.py', '../../../../../configs/dino_vit/_base_/layer_decay.py']
rows = dict(fpn=dict(model=_base_.fpn), _delete_=True)  # without those of the base
model = dict(data_preprocessor=dict(size=(252, 252)), backbone=dict(_base_.focus, _delete_=True))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(504, 378), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(252, 252), cat_max_ratio=0.75, **_base_.void),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
optim_wrapper = dict(
    constructor=_base_.layer_decay.constructor, paramwise_cfg=dict(_base_.layer_decay.paramwise_cfg, _delete_=True)
)
