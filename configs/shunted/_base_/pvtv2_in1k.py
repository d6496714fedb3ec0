# PVTv2 (https://arxiv.org/abs/2106.13797), which Shunted builds on. Shunted's recipe is PVTv2's; drop path and gradient
# clipping are those of PVTv2's configs. Published classifiers load with their heads, as timm:pvt_v2_b2.in1k or
# https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b2.pth. The depths are to be added.
_base_ = './in1k.py'
model = dict(
    backbone=dict(
        type='mmattn.ShuntedTransformer',
        arch=dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), stem_convs=0),
        stem='convolution',
        feed_forward='conv',
        attention=dict(type='SpatialReductionAttention'),
    ),
    head=dict(in_channels=512),
)
