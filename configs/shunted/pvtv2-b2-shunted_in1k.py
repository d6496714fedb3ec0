# Shunted attention, half of its heads at half the rate, started from B2. Stages 1 and 3, with 1 and 5 heads in B2, have
# twice as many. The log says by how much the first pass differs from B2's.
_base_ = './pvtv2-b2_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(num_heads=(2, 2, 10, 8)),
        attention=None,
        feed_forward='detail',
        init_cfg=dict(type='Pretrained', checkpoint='timm:pvt_v2_b2.in1k', warm_start=True),
    )
)
