_base_ = './dino.py'
attention = dict(num_levels=5)
model = dict(
    num_feature_levels=5,
    neck=dict(num_outs=5),
    encoder=dict(layer_cfg=dict(self_attn_cfg=attention)),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=attention)),
)
