# The trained ViT-S/14 that projects/lab/tools/focus_weights.py takes from a package, whole and frozen.
# MMATTN_FOCUS names its file, MMATTN_KEPT_MAPS the folder of its maps.
custom_imports = dict(imports=['mmattn_lab'])
focus = dict(
    type='mmattn.DINOViT',
    arch='vit_small_patch14_dinov2',
    init_cfg=dict(type='Pretrained', checkpoint='{{$MMATTN_FOCUS:checkpoints/focus_vit_s.pth}}'),
)
frozen = dict(
    type='KeptMaps',
    backbone=dict(focus, out_indices=(5, 8, 11)),
    folder='{{$MMATTN_KEPT_MAPS:work_dirs/real/maps}}',
    bfloat16=True,
    _delete_=True,
)
