# The trained ViT-S/14 of a package teaches a row without labels for three epochs, as the Shunted Transformer does in
# distill.py for ten. It sees a crop of 48 pixels enlarged to 98, which are 7 x 7 patches, and gives the map of block 9,
# from which classifiers learn most (projects/lab/docs/foundation.md). A photo has one view, so that its features are
# computed once. MMATTN_FEATURES names their folder, which takes 4 GB.
_base_ = ['./distill.py', '../../../lab/configs/real/foundation/_base_/focus.py']
rows = dict(shunted={'model.backbone': dict(_base_.models['small']['shunted'], _delete_=True, out_indices=(1, 2, 3))})
model = dict(
    teacher=dict(
        _delete_=True,
        model=dict(_base_.focus, out_indices=(8,)),
        img_size=98,
        cache='{{$MMATTN_FEATURES:work_dirs/real/features}}',
    )
)
load, crop, flip, pack = _base_.train_pipeline
fixed = dict(type='mmattn_distillation.FixedViews', transforms=[crop, flip], views=1)
train_pipeline = [load, fixed, pack]
train_dataloader = dict(batch_sampler=None, dataset=dict(pipeline=train_pipeline))

epochs = 3
rise, fall = _base_.param_scheduler
param_scheduler = [dict(rise, end=0.1 * epochs), dict(fall, begin=0.1 * epochs, end=epochs, T_max=0.9 * epochs)]
train_cfg = dict(max_epochs=epochs)
