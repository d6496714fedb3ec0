_base_ = './dinov3-s.py'
backbone = dict(arch='vit_base_patch16_dinov3')
channels = 768
pretrained = dict(backbone, init_cfg=dict(checkpoint='timm:vit_base_patch16_dinov3.lvd1689m'))
