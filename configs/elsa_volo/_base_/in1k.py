# ImageNet with token labels, as by VOLO's script, which ELSA's paper follows and whose copy trains ELSA-Swin. The
# environment variable TOKEN_LABELS_ROOT names another folder of label maps: the published ones, or those of
# tools/make_token_labels.py. The backbone, its drop path, the head's in_channels, num_heads and mlp_ratio, and the rate
# are to be added.
_base_ = '../../elsa_swin/_base_/in1k.py'
model = dict(
    _delete_=True,
    type='mmattn.classification.TokenLabelClassifier',
    backbone=dict(out_indices=(3,)),
    head=dict(type='mmattn.classification.VOLOHead', num_classes=1000),
    train_cfg=dict(augments=dict(type='mmattn.classification.MixThenErase', mixing=[], erase_prob=0.25)),
)

label_root = '{{$TOKEN_LABELS_ROOT:data/token_labels}}'
load = [dict(type='LoadImageFromFile'), dict(type='mmattn.classification.LoadTokenLabels', label_root=label_root)]
move = dict(type='mmattn.classification.MoveTokenLabels', transforms=_base_.train_pipeline[2:4])  # flip and RandAugment
# The script draws an interpolation for each crop.
crops = [
    dict(type='mmattn.classification.CropTokenLabels', scale=224, backend='pillow', interpolation=way)
    for way in ('bilinear', 'bicubic')
]
pack = dict(type='PackInputs', algorithm_keys=('label_map', 'label_box'))
train_pipeline = [*load, move, dict(type='RandomChoice', transforms=[[crop] for crop in crops]), pack]
# int(224 / 0.96), as in VOLO's script; which size ELSA-VOLO was tested at is not known
test_pipeline = [_base_.test_pipeline[0], dict(_base_.test_pipeline[1], scale=233), *_base_.test_pipeline[2:]]
# int(224 / 1.15), with a black border, as in VOLO's script for D4 and D5
bordered_pipeline = [
    test_pipeline[0],
    dict(test_pipeline[1], scale=194),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/CenterCrop', size=224),
    dict(type='PILToNumpy', to_bgr=True),
    test_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(decay_mult=0.0), 'cls_token': dict(decay_mult=0.0)}),
    clip_grad=None,
)
custom_hooks = [dict(type='SyncBuffersHook')]  # the stem's batch norms
