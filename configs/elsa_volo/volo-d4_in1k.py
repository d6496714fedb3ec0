# VOLO's script has neither rate nor drop path of D4: they are those of D3.
_base_ = ['./_base_/volo-d4.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.5), head=_base_.head)
test_pipeline = _base_.bordered_pipeline
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
