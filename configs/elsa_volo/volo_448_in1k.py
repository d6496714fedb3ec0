# MMATTN_ROW=volo-d4 in the environment chooses a row. D4 has the recipe of D3, since its own is not known, but
# its own test images.
_base_ = ['./_base_/{{$MMATTN_ROW:volo-d3}}.py', './_base_/in1k_448.py']
row = '{{$MMATTN_ROW:volo-d3}}'
rows = ['volo-d3', 'volo-d4']
model = dict(backbone=dict(_base_.backbone, img_size=448, drop_path_rate=0.5), head=_base_.head)
test_pipeline = _base_.bordered_pipeline if row == 'volo-d4' else _base_.test_pipeline
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
load_from = _base_.pretrained.checkpoint
