_base_ = ['./_base_/transnext-t.py', './_base_/dino.py']
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, out_indices=(1, 2, 3), img_size=800, drop_path_rate=0.3),
    neck=dict(in_channels=_base_.in_channels[1:]),
)
