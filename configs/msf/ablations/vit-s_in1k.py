# Tables 2 and 4 of MSF: projections of the plain transformer.
_base_ = ['../_base_/vit-s.py', '../_base_/in1k.py']
backbones = {
    # table 2; i is the plain ViT-S
    'a': dict(sharing='QQQQ'),
    'b': dict(sharing='QKKQ'),
    'c': dict(sharing='QQQW'),
    'd': dict(sharing='QQVQ'),
    'e': dict(sharing='QQVV'),
    'f': dict(sharing='QQVW'),
    'g': dict(sharing='QKKW'),
    'h': dict(sharing='QKVV'),
    'i': dict(),
    # table 4
    'g2-interleaved': dict(groups=2),
    'g2-block': dict(groups=2, group_mode='block'),
}
rows = {name: dict(model=dict(backbone=settings)) for name, settings in backbones.items()}
model = dict(
    backbone=_base_.backbone,
    head=dict(type='mmattn.classification.NormLinearClsHead', in_channels=_base_.in_channels[-1]),
)
