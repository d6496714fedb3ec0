# SegFormer's recipe: UperNet's, with ten times the rate for the head. A key "head" would match ELSA's ghost_head too.
_base_ = './ade20k_160k.py'
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0), auxiliary_head=dict(lr_mult=10.0)))
)
