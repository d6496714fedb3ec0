backbone = dict(type='mmattn.ShuntedTransformer', arch='tiny')
in_channels = [64, 128, 256, 512]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_T.pth'))
