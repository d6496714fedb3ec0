# DINOv2 ViT-B/14 with four registers, 87 M parameters. Its weights have the Apache-2.0 licence. timm downloads them;
# checkpoint names a file instead.
_base_ = './distiller.py'
model = dict(teacher=dict(model=_base_.teachers.dinov2, checkpoint=None))
