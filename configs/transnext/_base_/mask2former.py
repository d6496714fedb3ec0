# Mask2Former as in TransNeXt's code. The backbone and decode_head.in_channels are to be added.
_base_ = [
    '../../_base_/models/mask2former.py',
    '../../_base_/datasets/ade20k_short_side.py',
    '../../_base_/schedules/ade20k_160k_mask2former.py',
    '../../_base_/seg_runtime.py',
    './slow_backbone.py',
]
heads = dict.fromkeys(
    ('decode_head.query_embed', 'decode_head.query_feat', 'decode_head.level_embed'), dict(decay_mult=0.0)
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        _delete_=True,
        custom_keys=dict(_base_.backbone_keys, **heads),
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        flat_decay_mult=0.0,
    )
)
