_base_ = ['./_base_/elsa-volo-d3.py', './_base_/in1k_448.py']
model = dict(backbone=dict(_base_.backbone, img_size=448, drop_path_rate=0.5), head=_base_.head)
load_from = _base_.pretrained.init_cfg.checkpoint
