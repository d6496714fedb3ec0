backbone = dict(type='ShuntedTransformer', arch='base')
in_channels = [64, 128, 256, 512]
pretrained = dict(type='Pretrained', checkpoint='checkpoints/ckpt_B.pth')
