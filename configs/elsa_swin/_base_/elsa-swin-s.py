backbone = dict(type='mmattn.ELSASwin', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='checkpoints/elsa_swin_small.pth'))
