_base_ = ['./_base_/volo-d3.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.5), head=_base_.head)
