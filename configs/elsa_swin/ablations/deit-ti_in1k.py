# Table 11 of ELSA: DeiT-Ti without class token, and with the ghost head on its global attention. The paper prints no
# recipe. DeiT's own is Shunted's with another batch and drop path. MMATTN_ROW=ghost-head chooses a row.
_base_ = ['../../_base_/models/deit.py', '../../shunted/_base_/in1k.py']
rows = {
    'average-pooling': dict(type='MeanShiftAttention', attention='plain', proj_bias=True),
    'ghost-head': dict(type='GhostHeadAttention'),
}
row = '{{$MMATTN_ROW:average-pooling}}'
model = dict(backbone=dict(_base_.backbone, arch='tiny', attention=rows[row]), head=dict(in_channels=192))
train_dataloader = dict(batch_size=256)  # on each of 4 GPUs: 1024
