# A classifier for the toy ImageNet, trained with token labels and MixToken. TOKEN_LABELS_ROOT names another folder of
# label maps, which tools/make_token_labels.py makes.
_base_ = [
    './_base_/elsa-volo-toy.py',
    '../../../../configs/_base_/classifier.py',
    '../_base_/datasets/toy_imagenet.py',
    '../_base_/schedules/toy_imagenet.py',
    '../../../../configs/_base_/cls_runtime.py',
]
model = dict(
    type='mmattn.classification.TokenLabelClassifier',
    backbone=dict(_base_.volo, img_size=64, out_indices=(3,)),
    neck=None,
    head=dict(
        type='mmattn.classification.VOLOHead', in_channels=_base_.pyramid.in_channels[-1], num_heads=4, init_cfg=None
    ),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='mmattn.classification.LoadTokenLabels', label_root='{{$TOKEN_LABELS_ROOT:data/toy/token_labels}}'),
    dict(
        type='mmattn.classification.MoveTokenLabels',
        transforms=[dict(type='RandomFlip', prob=0.5, direction='horizontal')],
    ),
    dict(type='mmattn.classification.CropTokenLabels', scale=64, crop_ratio_range=(0.5, 1.0)),
    dict(type='PackInputs', algorithm_keys=('label_map', 'label_box')),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
default_hooks = dict(logger=dict(interval=10))
