_base_ = ['./_base_/volo-d5.py', './_base_/in1k_512.py']
model = dict(backbone=dict(_base_.backbone, img_size=512, drop_path_rate=0.75), head=_base_.head)
load_from = _base_.pretrained.init_cfg.checkpoint
