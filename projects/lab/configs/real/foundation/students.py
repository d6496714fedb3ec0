# Linear heads on the frozen students of the ViT-S/14 on CamVid, in as many steps as camvid.py. A row is a student. The
# head takes its maps of strides 8, 16 and 32. MMATTN_STUDENTS names the folder of the distillations. Images keep their
# 480 x 360 pixels.
_base_ = './camvid.py'
input_size = (480, 360)
students = '{{$MMATTN_STUDENTS:work_dirs/real/focus}}'
rows = {
    **{
        name: dict(
            model=dict(
                backbone=dict(
                    backbone=dict(
                        backbone,
                        out_indices=(1, 2, 3),
                        init_cfg=dict(type='Pretrained', checkpoint=f'{students}/{name}/backbone_epoch_3.pth'),
                        _delete_=True,
                    ),
                    bfloat16=False,
                ),
                decode_head=dict(
                    in_channels=_base_.channels['small'][name][1:], channels=sum(_base_.channels['small'][name][1:])
                ),
            )
        )
        for name, backbone in _base_.models['small'].items()
        if 'vit' not in name
    },
    '_delete_': True,  # those of the base
}
model = dict(
    data_preprocessor=dict(size=(360, 480)),
    neck=None,
    decode_head=dict(_base_.linear, in_index=[0, 1, 2], input_transform='resize_concat'),
)
train_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
test_pipeline = train_pipeline
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
