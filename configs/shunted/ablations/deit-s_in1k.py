# Table 9 of Shunted: other feed-forward layers in a ViT. Its 79.8 % are DeiT-S's; the class token, whose way past the
# convolutions the paper does not say, is left out here. MODEL=detail in the environment chooses a row.
_base_ = '../_base_/in1k.py'
rows = {'plain': 'plain', 'conv': 'conv', 'detail': 'detail'}
model = dict(
    backbone=dict(
        type='ViTFrame',
        arch='small',
        feed_forward=rows['{{$MODEL:plain}}'],
        embedding='deit',
        final_norm=True,
        drop_path_rate=0.1,
        out_indices=(11,),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    head=dict(in_channels=384),
)
