# A segmentor on the backbone of teacher_in1k.py: the teacher of docs/learning.md has learned both.
_base_ = ['./_base_/teacher.py', './compare/_base_/tasks/segmentor.py']
init_cfg = dict(type='Pretrained', checkpoint='{{$MMATTN_TEACHER:work_dirs/teacher_in1k/epoch_8.pth}}')
model = dict(
    backbone=dict(_base_.teacher, init_cfg=init_cfg),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type='FCNHead',
        in_channels=384,
        channels=64,
        num_convs=1,
        concat_input=False,
        num_classes=7,
        norm_cfg=dict(type='BN'),
        loss_decode=_base_.model.decode_head.loss_decode,
    ),
)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=300, save_last=True))
