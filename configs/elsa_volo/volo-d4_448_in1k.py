# The recipe is that of D3, since its own is not known. The test images are its own.
_base_ = ['./_base_/volo-d4.py', './_base_/in1k_448.py']
model = dict(backbone=dict(_base_.backbone, img_size=448, drop_path_rate=0.5), head=_base_.head)
load_from = _base_.pretrained.init_cfg.checkpoint
test_pipeline = _base_.bordered_pipeline
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
