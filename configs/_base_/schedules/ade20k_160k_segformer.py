# SegFormer's recipe: that of UperNet with a head that learns ten times as fast.
_base_ = './ade20k_160k.py'
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(head=dict(lr_mult=10.0))))
