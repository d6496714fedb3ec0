# Not in the paper, which has SETR with ViT-S: the head upsamples the map of stride 32, the auxiliary head that of
# stride 16. Recipe: UperNet's. MMATTN_ROW=msf-swin-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-swin-t}}.py',
    '../_base_/models/setr-pup.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:msf-swin-t}}'
rows = ['msf-swin-t', 'msf-swin-t-g2', 'msf-swin-s']
model = dict(
    backbone=dict(_base_.backbone, out_indices=(2, 3), drop_path_rate=0.3, init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels[3]),
    auxiliary_head=[dict(_base_.auxiliary, in_channels=_base_.in_channels[2], in_index=0)],
)
