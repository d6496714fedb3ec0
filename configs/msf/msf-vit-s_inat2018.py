# Table 7. The weights are those of 100 epochs on ImageNet; the paper does not say which. MMATTN_ROW=vit-s in the
# environment chooses a row.
_base_ = ['./_base_/{{$MMATTN_ROW:msf-vit-s}}.py', './_base_/inat2018.py']
row = '{{$MMATTN_ROW:msf-vit-s}}'
rows = ['vit-s', 'msf-vit-s', 'msf-vit-s-g2']
model = dict(backbone=_base_.backbone, head=dict(type='NormLinearClsHead', in_channels=_base_.in_channels[-1]))
load_from = _base_.pretrained.checkpoint
