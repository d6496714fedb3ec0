# Mask2Former for the toy ADE20K, with few queries, one encoder layer, three decoder layers and few channels.
_base_ = [
    './_base_/shunted-toy.py',
    '../../../../configs/_base_/models/mask2former.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../../../../configs/_base_/seg_runtime.py',
]
attention = dict(embed_dims=64, num_heads=4)
feedforward = dict(embed_dims=64, feedforward_channels=128)
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=_base_.shunted,
    decode_head=dict(
        in_channels=[32, 64, 128, 256],
        feat_channels=64,
        out_channels=64,
        num_queries=20,
        pixel_decoder=dict(
            encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=feedforward)),
            positional_encoding=dict(num_feats=32),
        ),
        positional_encoding=dict(num_feats=32),
        transformer_decoder=dict(
            num_layers=3, layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=feedforward)
        ),
        train_cfg=dict(num_points=1024),
    ),
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
