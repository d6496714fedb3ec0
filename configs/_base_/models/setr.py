# What the forms of SETR share, as MMSegmentation has them, for ADE20K's 150 classes.
_base_ = './segmentor.py'

head = dict(
    num_classes=150,
    dropout_ratio=0,
    norm_cfg=_base_.sync_norm,
    align_corners=False,
    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
)
auxiliary = dict(head, loss_decode=dict(head['loss_decode'], loss_weight=0.4))
model = dict(decode_head=head, test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
