_base_ = ['./_base_/elsa-volo-d1.py', './_base_/in1k_384.py']
model = dict(backbone=dict(_base_.backbone, img_size=384, drop_path_rate=0.1), head=_base_.head)
load_from = _base_.pretrained.init_cfg.checkpoint
