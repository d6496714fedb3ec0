# A linear head on frozen features, with the schedule of DINOv2's linear evaluation: 40 000 steps, AdamW, a rate of 1e-3
# that falls linearly after a warm-up. The head has no batch norm, because the map comes from a LayerNorm.
_base_ = [
    '../../_base_/models/segmentor.py',
    '../../_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_160k.py',
    '../../_base_/seg_runtime.py',
]
model = dict(
    decode_head=dict(
        type='FCNHead',
        in_index=0,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.0,
        num_classes=150,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    )
)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-4))
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=40000)]
train_cfg = dict(max_iters=40000, val_interval=8000)
