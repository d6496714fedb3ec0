backbone = dict(type='mmattn.ELSASwin', arch='base')
in_channels = [128, 256, 512, 1024]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='checkpoints/elsa_swin_base.pth'))
