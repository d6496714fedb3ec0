# Swin-T -> ELSA-Swin-T: Hadamard attention in the first three stages. No exact start reaches it.
_base_ = '../_base_/graft.py'
source = dict(type='mmattn.SwinFrame', arch='tiny', drop_path_rate=0.0)
weights = dict(type='Pretrained', checkpoint='timm:swin_tiny_patch4_window7_224.ms_in1k')
elsa = dict(type='ELSA', group_width=4)
model = dict(
    teacher=dict(model=dict(source, init_cfg=weights)),
    backbone=dict(source, attention=[elsa, elsa, elsa, dict(type='WindowAttention')]),
)
