# PVTv2 (https://arxiv.org/abs/2106.13797), which Shunted builds on. MMATTN_ROW=pvtv2-b3 in the environment chooses a
# row. Shunted's recipe is PVTv2's; drop path and gradient clipping are those of PVTv2's configs. Published
# classifiers load with their heads, as timm:pvt_v2_b2.in1k or
# https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b2.pth.
#
# pvtv2-b2-shunted has shunted attention, half of its heads at half the rate, and starts from B2. Stages 1 and 3, with 1
# and 5 heads in B2, have twice as many. The log says by how much the first pass differs from B2's.
_base_ = './_base_/in1k.py'
dims, heads = (64, 128, 320, 512), (1, 2, 5, 8)
pvt = dict(stem='convolution', feed_forward='conv', attention=dict(type='SpatialReductionAttention'))
rows = {
    'pvtv2-b0': dict(pvt, arch=dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2), num_heads=heads, stem_convs=0)),
    'pvtv2-b1': dict(pvt, arch=dict(embed_dims=dims, depths=(2, 2, 2, 2), num_heads=heads, stem_convs=0)),
    'pvtv2-b2': dict(pvt, arch=dict(embed_dims=dims, depths=(3, 4, 6, 3), num_heads=heads, stem_convs=0)),
    'pvtv2-b3': dict(
        pvt, arch=dict(embed_dims=dims, depths=(3, 4, 18, 3), num_heads=heads, stem_convs=0), drop_path_rate=0.3
    ),
    'pvtv2-b4': dict(
        pvt, arch=dict(embed_dims=dims, depths=(3, 8, 27, 3), num_heads=heads, stem_convs=0), drop_path_rate=0.3
    ),
    'pvtv2-b5': dict(
        pvt,
        arch=dict(embed_dims=dims, depths=(3, 6, 40, 3), num_heads=heads, stem_convs=0),
        mlp_ratios=(4, 4, 4, 4),
        drop_path_rate=0.3,
    ),
    'pvtv2-b2-shunted': dict(
        arch=dict(embed_dims=dims, depths=(3, 4, 6, 3), num_heads=(2, 2, 10, 8), stem_convs=0),
        stem='convolution',
        init_cfg=dict(type='Pretrained', checkpoint='timm:pvt_v2_b2.in1k', warm_start=True),
    ),
}
row = '{{$MMATTN_ROW:pvtv2-b2}}'
model = dict(
    backbone=dict(type='ShuntedTransformer', **rows[row]), head=dict(in_channels=rows[row]['arch']['embed_dims'][-1])
)
optim_wrapper = dict(clip_grad=dict(max_norm=1.0) if row in ('pvtv2-b3', 'pvtv2-b4', 'pvtv2-b5') else None)
