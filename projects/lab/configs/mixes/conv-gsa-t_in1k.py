# Depth-wise convolution in the first two stages, and global self-attention in the last two, at the cost of Swin-T. The
# mix was found on toy data, and was never trained on ImageNet: see README.md. The recipe is ELSA's.
_base_ = '../../../../configs/elsa_swin/_base_/in1k.py'
conv, gsa = dict(type='DepthwiseConv'), dict(type='GlobalSelfAttention')
model = dict(
    backbone=dict(
        type='mmattn.SwinFrame', arch='tiny', attention=[conv, conv, gsa, gsa], mlp_ratio=4.375, drop_path_rate=0.1
    ),
    head=dict(in_channels=768),
)
custom_hooks = [dict(type='SyncBuffersHook')]  # batch norms of global self-attention
