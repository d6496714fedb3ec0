# DINOv3 ViT-B/16, 86 M parameters. Its weights have the DINOv3 License: see docs/distillation.md#licences. timm
# downloads them; checkpoint names a file instead.
_base_ = './distiller.py'
model = dict(teacher=dict(model=_base_.teachers.dinov3, checkpoint=None))
