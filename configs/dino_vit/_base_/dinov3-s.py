# UperNet takes the map of the last block of each quarter of the blocks.
backbone = dict(type='mmattn.DINOViT', arch='vit_small_patch16_dinov3')
channels = 384
quarters = dict(out_indices=(2, 5, 8, 11))
frozen = dict(frozen_stages=12, drop_path_rate=0.0)
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='timm:vit_small_patch16_dinov3.lvd1689m'))
