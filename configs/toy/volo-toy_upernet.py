_base_ = './elsa-volo-toy_upernet.py'
model = dict(backbone=dict(attention=[dict(type='OutlookAttention'), dict(type='SelfAttention')]))
