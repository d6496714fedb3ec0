_base_ = './_base_/t2t_in1k.py'
model = dict(
    backbone=dict(embed_dims=384, num_layers=14, layer_cfgs=dict(num_heads=6, feedforward_channels=1152)),
    head=dict(in_channels=384),
)
