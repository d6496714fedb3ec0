# The same at 384 x 384. MMATTN_ROW=dinat_s-l in the environment chooses a row. Settings for dinat-l-11x11 were not
# released: it has those of dinat-l.
_base_ = './dinat-l_in1k.py'
rows = [*_base_.rows, 'dinat-l-11x11']
weight_decays = {'dinat-l': 1e-10, 'dinat_s-l': 1e-5, 'dinat-l-11x11': 1e-10}
model = dict(backbone=dict(attention=_base_.attentions.in1k_384))

load, crop, *rest = _base_.train_pipeline
crops = [[dict(step, scale=384) for step in steps] for steps in crop.transforms]
train_pipeline = [load, dict(crop, transforms=crops), *rest]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=384),
    dict(_base_.test_pipeline[2], crop_size=384),
    _base_.test_pipeline[3],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(weight_decay=weight_decays[_base_.row]))
