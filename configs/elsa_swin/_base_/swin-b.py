# Swin Transformer, which ELSA-Swin is compared with, and its authors' weights
backbone = dict(type='mmattn.SwinFrame', arch='base')
in_channels = [128, 256, 512, 1024]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='timm:swin_base_patch4_window7_224.ms_in1k'))
