# VOLO-D1 with other token mixers in its first stage: table 5 of ELSA, which takes the first three rows from VOLO's
# paper. ELSA does not say which local attention and which convolution they are. Here both see 3 x 3 pixels, as outlook
# attention, and "DwConv" is an ordinary convolution alone, since depth-wise ones have 26.3 M parameters, not 27.
_base_ = '../elsa-volo-d1_in1k.py'
backbones = {
    'lsa': dict(attention=[dict(type='LocalAttention', area='neighbours', kernel_size=3), None, None, None]),
    'conv': dict(attention=[dict(type='Convolution', kernel_size=3), None, None, None]),
    'outlooker': dict(attention=None),
    'elsa': dict(),
}
rows = {name: dict(model=dict(backbone=settings)) for name, settings in backbones.items()}
