# Swin Transformer, the baseline of table 6, trained as ELSA-Swin, which the paper trains as Swin. Drop path is that of
# Swin's configs, and its tables of positions have no weight decay. MMATTN_ROW=swin-b in the environment chooses a row.
_base_ = ['./_base_/{{$MMATTN_ROW:swin-t}}.py', './_base_/in1k.py']
row = '{{$MMATTN_ROW:swin-t}}'
rows = {'swin-t': dict(drop_path_rate=0.2), 'swin-s': dict(drop_path_rate=0.3), 'swin-b': dict(drop_path_rate=0.5)}
model = dict(backbone=dict(_base_.backbone, **rows[row]), head=dict(in_channels=_base_.in_channels[-1]))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.rb': dict(decay_mult=0.0)}))
