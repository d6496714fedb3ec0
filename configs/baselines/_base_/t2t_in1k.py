# T2T-ViT of MMPretrain.
_base_ = './in1k.py'
model = dict(
    _delete_=True,
    type='ImageClassifier',
    backbone=dict(type='T2T_ViT', t2t_cfg=dict(token_dims=64, use_performer=False), drop_path_rate=0.1),
    head=dict(type='VisionTransformerClsHead', num_classes=1000, loss=_base_.loss),
    train_cfg=_base_.model.train_cfg,
)
