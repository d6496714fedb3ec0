# UperNet as in TransNeXt's code, tested in windows. The backbone and in_channels of the heads are to be added.
_base_ = ['../../_base_/recipes/upernet_160k_ade20k.py', './decay.py']
model = dict(test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
