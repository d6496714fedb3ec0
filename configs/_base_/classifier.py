# An ImageNet classifier of MMPretrain. The backbone and head.in_channels are to be added.
model = dict(
    type='ImageClassifier', neck=dict(type='GlobalAveragePooling'), head=dict(type='LinearClsHead', num_classes=1000)
)
