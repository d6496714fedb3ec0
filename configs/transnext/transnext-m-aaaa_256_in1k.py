# Aggregated attention in the last stage, too (appendix D.6), with images of 256 x 256.
_base_ = './transnext-m_in1k.py'
model = dict(backbone=dict(reductions=(16, 8, 4, 2), pretrain_size=256))

train_pipeline = [_base_.train_pipeline[0], dict(_base_.train_pipeline[1], scale=256), *_base_.train_pipeline[2:]]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=292),
    dict(_base_.test_pipeline[2], crop_size=256),
    *_base_.test_pipeline[3:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
