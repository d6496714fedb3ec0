# Table 9 of Shunted: other feed-forward layers in a ViT. Its 79.8 % are DeiT-S's; the class token, whose way past the
# convolutions the paper does not say, is left out here. MMATTN_ROW=detail in the environment chooses a row.
_base_ = ['../../_base_/models/deit.py', '../_base_/in1k.py']
rows = {'plain': 'plain', 'conv': 'conv', 'detail': 'detail'}
row = '{{$MMATTN_ROW:plain}}'
model = dict(backbone=dict(_base_.backbone, arch='small', feed_forward=rows[row]), head=dict(in_channels=384))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=dict(decay_mult=0.0))))
