_base_ = './_base_/pvtv2_in1k.py'
model = dict(backbone=dict(arch=dict(depths=(3, 6, 40, 3)), mlp_ratios=(4, 4, 4, 4), drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
