# Attention in groups 2 to 4, the best of table 5, as MMPretrain builds it.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmattn'])
model = dict(
    type='ImageClassifier',
    backbone=dict(type='GSAResNet', depth=50, out_indices=(3,)),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=2048),
)
