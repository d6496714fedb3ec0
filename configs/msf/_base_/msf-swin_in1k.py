# The Swins of tables 5 and 6. The paper does not say their drop path; 0.2 and 0.3 are those of torchvision's Swin-T and
# Swin-S, which its script takes.
_base_ = './in1k.py'
model = dict(
    backbone=dict(type='mmattn.MSFSwin', out_indices=(3,), shift_small_maps=False),
    head=dict(in_channels=768, init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02)),
)
