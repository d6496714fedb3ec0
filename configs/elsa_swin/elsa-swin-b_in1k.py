_base_ = './elsa-swin-t_in1k.py'
model = dict(backbone=dict(arch='base', drop_path_rate=0.5), head=dict(in_channels=1024))
