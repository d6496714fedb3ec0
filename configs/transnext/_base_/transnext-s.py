backbone = dict(type='mmattn.TransNeXt', arch='small')
in_channels = [72, 144, 288, 576]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth',
    ),
)
