# MMATTN_ROW=dinat_s-l in the environment chooses a row. The names and dilations of the released configs are
# for 640 x 640, but their crops are 512 x 512. Here crops and test images are 640 x 640. DiNAT-L was trained without
# mixed precision.
_base_ = [
    './_base_/{{$MMATTN_ROW:dinat-l}}.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    './_base_/ade20k.py',
]
row = '{{$MMATTN_ROW:dinat-l}}'
rows = ['dinat-l', 'dinat_s-l']
model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(
        _base_.backbone, attention=_base_.attentions.ade20k_640, drop_path_rate=0.3, init_cfg=_base_.pretrained
    ),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)

sizes = dict(
    RandomResize=dict(scale=(2560, 640)), Resize=dict(scale=(2560, 640)), RandomCrop=dict(crop_size=(640, 640))
)
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(type='OptimWrapper' if row == 'dinat-l' else 'AmpOptimWrapper')
