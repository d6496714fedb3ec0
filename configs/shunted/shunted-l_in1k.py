# Large's drop path is not printed; Tiny, Small and Base rise by 0.1 each.
_base_ = './shunted-t_in1k.py'
model = dict(backbone=dict(arch='large', drop_path_rate=0.4), head=dict(in_channels=768))
