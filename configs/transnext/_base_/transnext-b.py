backbone = dict(type='mmattn.TransNeXt', arch='base')
in_channels = [96, 192, 384, 768]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth',
    ),
)
