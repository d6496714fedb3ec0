# Mask2Former for Cityscapes: 19 classes, crops of 512 x 1024.
_base_ = './mask2former.py'
model = dict(
    data_preprocessor=dict(size=(512, 1024)),
    decode_head=dict(num_classes=19, loss_cls=dict(class_weight=[1.0] * 19 + [0.1])),
)
