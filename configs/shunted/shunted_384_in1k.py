# MMATTN_ROW=shunted-b in the environment chooses a row.
_base_ = ['./_base_/{{$MMATTN_ROW:shunted-s}}.py', './_base_/in1k_384.py']
row = '{{$MMATTN_ROW:shunted-s}}'
rows = {
    'shunted-s': dict(drop_path_rate=0.2),
    'shunted-b': dict(drop_path_rate=0.3),
    'shunted-l': dict(drop_path_rate=0.4),
}
model = dict(backbone=dict(_base_.backbone, **rows[row]), head=dict(in_channels=_base_.in_channels[-1]))
load_from = _base_.pretrained.checkpoint
