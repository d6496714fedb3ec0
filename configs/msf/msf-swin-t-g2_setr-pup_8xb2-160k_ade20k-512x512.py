# Not in the paper, which has SETR with ViT-S: the head upsamples the map of stride 32, the auxiliary head that of
# stride 16. Recipe: UperNet's.
_base_ = ['./_base_/msf-swin-t-g2.py', '../_base_/recipes/setr-pup_160k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, out_indices=(2, 3), drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels[3]),
    auxiliary_head=[dict(_base_.auxiliary, in_channels=_base_.in_channels[2], in_index=0)],
)
