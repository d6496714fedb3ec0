# Table 9 of Shunted: other feed-forward layers in a ViT. Its 79.8 % are DeiT-S's; the class token, whose way past the
# convolutions the paper does not say, is left out here.
_base_ = ['../../_base_/models/deit.py', '../_base_/in1k.py']
rows = {name: {'model.backbone.feed_forward': name} for name in ('plain', 'conv', 'detail')}
model = dict(backbone=dict(_base_.backbone, arch='small', feed_forward='plain'), head=dict(in_channels=384))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=dict(decay_mult=0.0))))
