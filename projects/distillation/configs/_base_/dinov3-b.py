# DINOv3 ViT-B/16, 86 M parameters. Its weights have the DINOv3 License: see docs/distillation.md#licences. timm
# downloads them; checkpoint names a file instead.
_base_ = './distiller.py'
model = dict(teacher=dict(model='vit_base_patch16_dinov3.lvd1689m', checkpoint=None))
