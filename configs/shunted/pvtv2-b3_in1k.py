_base_ = './_base_/pvtv2_in1k.py'
model = dict(backbone=dict(arch=dict(depths=(3, 4, 18, 3)), drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
