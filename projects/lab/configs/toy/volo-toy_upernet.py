_base_ = './elsa-volo-toy_upernet.py'
model = dict(backbone=dict(attention=None))
