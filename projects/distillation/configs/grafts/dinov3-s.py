# DINOv3's ViT-S with another token mixer in every second block: a row chooses it. Its weights have the DINOv3
# License: see docs/distillation.md#licences.
_base_ = '../_base_/graft.py'
attentions = {
    'neighbourhood': dict(type='NeighbourhoodAttention'),
    'msf': dict(type='MeanShiftAttention', proj_bias=True),
    'shunted': dict(type='ShuntedAttention'),
}
rows = {name: {'model.backbone.attention': [None, token_mixer] * 6} for name, token_mixer in attentions.items()}
source = dict(type='mmattn.DINOViT', arch='vit_small_patch16_dinov3', out_indices=(2, 5, 8, 11))
weights = dict(type='Pretrained', checkpoint='timm:vit_small_patch16_dinov3.lvd1689m')
model = dict(
    teacher=dict(model=dict(source, init_cfg=weights)),
    backbone=dict(source, attention=[None, attentions['neighbourhood']] * 6),
)
