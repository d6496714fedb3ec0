# Mask2Former on Cityscapes: the recipe for ADE20K, with the 90k steps of MMSegmentation's config.
_base_ = './ade20k_160k_mask2former.py'
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0, by_epoch=False, begin=0, end=90000)]
train_cfg = dict(max_iters=90000)
