# The ViTs of tables 5 and 6. The arch and head.in_channels are to be added.
_base_ = './in1k.py'
model = dict(backbone=dict(type='mmattn.MSFViT'), head=dict(type='mmattn.classification.NormLinearClsHead'))
