# The narrow ELSA-Swin of the toy Mask R-CNN, as a classifier: trains from scratch on the toy ImageNet in minutes.
_base_ = [
    '../_base_/classifier.py',
    '../_base_/datasets/toy_imagenet.py',
    '../_base_/schedules/toy_imagenet.py',
    '../_base_/cls_runtime.py',
]
model = dict(
    backbone=dict(
        type='ELSASwin',
        arch=dict(embed_dim=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), group_width=4),
        out_indices=(3,),
        drop_path_rate=0.0,
        init_cfg=None,  # PyTorch's initialisation: Swin's weights are too small for so narrow a model
    ),
    head=dict(in_channels=256),
)
default_hooks = dict(logger=dict(interval=10))
