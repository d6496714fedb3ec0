backbone = dict(type='mmattn.TransNeXt', arch='micro')
in_channels = [48, 96, 192, 384]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-micro-224-1k/resolve/main/transnext_micro_224_1k.pth',
    ),
)
