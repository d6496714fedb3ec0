# DINO for the toy COCO, with few queries, two encoder layers and two decoder layers. It trains from scratch in minutes
# on a CPU. In MMDetection 3.3, DINO's queries must have 256 channels.
_base_ = ['./_base_/elsa-swin-toy.py', '../../../../configs/_base_/recipes/dino-4scale_12e_coco.py']
narrow = dict(num_layers=2, layer_cfg=dict(ffn_cfg=dict(feedforward_channels=256)))
model = dict(
    num_queries=50,
    backbone=dict(_base_.backbone, _delete_=True, out_indices=(1, 2, 3)),
    neck=dict(in_channels=_base_.in_channels[1:]),
    encoder=narrow,
    decoder=narrow,
    dn_cfg=dict(group_cfg=dict(num_dn_queries=20)),
    test_cfg=dict(max_per_img=50),
)

data_root = '{{$COCO_ROOT:data/toy/coco}}'
resize = dict(type='Resize', scale=(128, 128), keep_ratio=True)
train_pipeline = [resize if step.type == 'RandomChoice' else step for step in _base_.train_pipeline]
test_pipeline = [resize if step.type == 'Resize' else step for step in _base_.test_pipeline]
train_dataloader = dict(
    batch_size=4, dataset=dict(data_root=data_root, filter_cfg=dict(min_size=1), pipeline=train_pipeline)
)
val_dataloader = dict(dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=10.0), paramwise_cfg=dict(_delete_=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0, end=3, T_max=3, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=3, val_interval=1)
default_hooks = dict(logger=dict(interval=10))
randomness = dict(seed=0)
