# MSF's ImageNet weights were not released: training starts from timm's plain ViT.
backbone = dict(type='MSFViT', arch='small')
in_channels = [384, 384, 384, 384]
pretrained = dict(type='Pretrained', checkpoint='checkpoints/vit_small_patch16_224.pth', warm_start=True)
