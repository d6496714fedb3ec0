# Swin Transformer, which ELSA-Swin is compared with, and its authors' weights
backbone = dict(type='mmattn.SwinFrame', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='timm:swin_small_patch4_window7_224.ms_in1k'))
