# The ImageNet classifier of table 6, as MMPretrain builds it.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmattn'])
model = dict(
    type='ImageClassifier',
    backbone=dict(type='MSFViT', arch='tiny'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=192),
)
