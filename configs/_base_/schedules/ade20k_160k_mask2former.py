# MMSegmentation's recipe for Mask2Former with Swin-T and drop path 0.3: AdamW, polynomial decay of the learning rate
# without warm-up, clipped gradients.
_base_ = './slow_backbone.py'

undecayed = dict(decay_mult=0.0)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(_base_.slow_backbone, query_embed=undecayed, query_feat=undecayed, level_embed=undecayed),
    ),
)
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0, by_epoch=False, begin=0, end=160000)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
