_base_ = './shunted-t_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.2))
