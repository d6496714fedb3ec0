# Table 11 of ELSA: DeiT-Ti with its class token (MMPretrain's), with average pooling in its place, and then with the
# ghost head on its global attention. The paper prints no recipe. DeiT's own is Shunted's with another batch and drop
# path.
_base_ = ['../../_base_/models/deit.py', '../../shunted/_base_/in1k.py']
rows = {
    'class-token': dict(
        model=dict(
            backbone=dict(_delete_=True, type='VisionTransformer', arch='deit-tiny', drop_path_rate=0.1),
            neck=None,
            head=dict(type='VisionTransformerClsHead'),
        )
    ),
    'average-pooling': {},
    'ghost-head': {'model.backbone.attention': dict(type='GhostHeadAttention')},
}
model = dict(backbone=dict(_base_.backbone, arch='tiny'), head=dict(in_channels=192))
train_dataloader = dict(batch_size=256)  # on each of 4 GPUs: 1024
undecayed = dict(decay_mult=0.0)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=undecayed, cls_token=undecayed)))
