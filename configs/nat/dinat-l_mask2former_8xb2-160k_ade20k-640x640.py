_base_ = [
    './_base_/dinat-l-11x11.py',
    '../_base_/models/mask2former.py',
    '../_base_/datasets/ade20k_short_side.py',
    '../_base_/schedules/ade20k_160k_mask2former.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.mask2former, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
)

sizes = dict(
    RandomChoiceResize=dict(scales=[64 * side for side in range(5, 21)], max_size=2560),
    Resize=dict(scale=(2560, 640)),
    RandomCrop=dict(crop_size=(640, 640)),
)
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
