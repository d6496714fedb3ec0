# VOLO-D1, D3 and D4, by their own recipe. Its script has neither rate nor drop path of D4: they are those of D3 here.
# MMATTN_ROW=volo-d4 in the environment chooses a row.
_base_ = ['./_base_/{{$MMATTN_ROW:volo-d1}}.py', './_base_/in1k.py']
row = '{{$MMATTN_ROW:volo-d1}}'
rows = {
    'volo-d1': dict(drop_path_rate=0.1, lr=1.6e-3),
    'volo-d3': dict(drop_path_rate=0.5, lr=1e-3),
    'volo-d4': dict(drop_path_rate=0.5, lr=1e-3),
}
model = dict(backbone=dict(_base_.backbone, drop_path_rate=rows[row]['drop_path_rate']), head=_base_.head)
test_pipeline = _base_.bordered_pipeline if row == 'volo-d4' else _base_.test_pipeline
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=rows[row]['lr']))
