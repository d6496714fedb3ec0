# The ImageNet classifier of table 2, as MMPretrain builds it: what the released weights belong to.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmattn'])
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ShuntedTransformer', arch='tiny', out_indices=(3,), drop_path_rate=0.1),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=512),
)
