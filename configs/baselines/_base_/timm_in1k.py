# Classifiers of timm. CNNs have no drop path.
_base_ = './in1k.py'
model = dict(
    _delete_=True, type='TimmClassifier', drop_path_rate=0.1, loss=_base_.loss, train_cfg=_base_.model.train_cfg
)
