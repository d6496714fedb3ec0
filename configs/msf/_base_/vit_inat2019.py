# Table 7. The weights are those of 100 epochs on ImageNet; the paper does not say which.
_base_ = './inat2019.py'
model = dict(head=dict(type='mmattn.classification.NormLinearClsHead'))
