# DINO, 12 epochs, as in TransNeXt's code: a batch of 16 in two steps. Add a backbone and neck.in_channels.
_base_ = ['../../_base_/recipes/dino-4scale_12e_coco.py', './slow_backbone.py']
train_dataloader = dict(batch_size=1)
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    accumulative_counts=2,
    paramwise_cfg=dict(
        _delete_=True, custom_keys=_base_.backbone_keys, bias_decay_mult=0.0, norm_decay_mult=0.0, flat_decay_mult=0.0
    ),
)
auto_scale_lr = dict(base_batch_size=8)  # MMEngine does not count accumulated steps
