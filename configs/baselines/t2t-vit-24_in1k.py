_base_ = './_base_/t2t_in1k.py'
model = dict(
    backbone=dict(embed_dims=512, num_layers=24, layer_cfgs=dict(num_heads=8, feedforward_channels=1536)),
    head=dict(in_channels=512),
)
