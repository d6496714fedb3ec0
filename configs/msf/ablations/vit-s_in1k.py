# Tables 2 and 4 of MSF: projections of the plain transformer. MODEL=b in the environment chooses a row.
_base_ = '../vit-s_in1k.py'
rows = {
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
model = dict(backbone=rows['{{$MODEL:i}}'])
