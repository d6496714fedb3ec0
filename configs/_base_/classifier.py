# An ImageNet classifier for MMPretrain, which is not part of the stack. The backbone and head.in_channels are to be
# added.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmattn', 'mmattn.classification'])
model = dict(
    type='ImageClassifier', neck=dict(type='GlobalAveragePooling'), head=dict(type='LinearClsHead', num_classes=1000)
)
