# VOLO itself. ELSA's paper prints its figures, and has no ELSA-VOLO of this size.
_base_ = './volo-d3.py'
backbone = dict(arch='d4')
in_channels = [384, 768, 768, 768]
head = dict(in_channels=768)
pretrained = dict(backbone, init_cfg=dict(checkpoint='checkpoints/d4_224_85.7.pth.tar'))
