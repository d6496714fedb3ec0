# Tables 1, 3 and 4 of MSF: which projections share a matrix, other forms, groups.
_base_ = ['../_base_/msf-vit-s.py', '../_base_/in1k.py']
backbones = {
    # table 1; r is the full model
    'a': dict(sharing='QQQQQ'),
    'b': dict(sharing='QKKQQ'),
    'c': dict(sharing='QQVVV'),
    'd': dict(sharing='QQVVQ'),
    'e': dict(sharing='QQQPP'),
    'f': dict(sharing='QKKKQ'),
    'g': dict(sharing='QKKQK'),
    'h': dict(sharing='QKKKW'),
    'i': dict(sharing='QKKQW'),
    'j': dict(sharing='QKKPP'),
    'k': dict(sharing='QKKPQ'),
    'l': dict(sharing='QQVPW'),
    'm': dict(sharing='QKKPW'),
    'n': dict(sharing='QKVVW'),
    'o': dict(sharing='QKVPP'),
    'p': dict(sharing='QKVQW'),
    'q': dict(sharing='QKVPQ'),
    'r': dict(),
    # table 3
    'residual': dict(form='residual'),
    'gauss': dict(form='gauss'),
    # table 4
    'g2-interleaved': dict(groups=2),
    'g2-block': dict(groups=2, group_mode='block'),
    'h-g2-interleaved': dict(sharing='QKKKW', groups=2),
}
rows = {name: dict(model=dict(backbone=settings)) for name, settings in backbones.items()}
model = dict(
    backbone=_base_.backbone,
    head=dict(type='mmattn.classification.NormLinearClsHead', in_channels=_base_.in_channels[-1]),
)
