# Two-stage Deformable DETR with box refinement, 12 epochs. Source: the baseline of H-Deformable-DETR with Swin-T and
# drop path 0.2 (configs/two_stage/deformable-detr-baseline/12eps/swin). MMDetection's recipe for R50 has 50 epochs,
# batches of 32 and narrower feed-forward layers. Our addition: norms and position tables have no weight decay. Add a
# backbone with feature maps of strides 8 to 32, and neck.in_channels.
_base_ = [
    'mmdet::deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py',
    '../datasets/coco_tta.py',
    '../schedules/slow_backbone.py',
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))

model = dict(
    encoder=dict(layer_cfg=dict(ffn_cfg=dict(feedforward_channels=2048))),
    decoder=dict(layer_cfg=dict(ffn_cfg=dict(feedforward_channels=2048))),
)

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=_base_.slow_backbone))
train_cfg = dict(max_epochs=12)
param_scheduler = [dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[11], gamma=0.1)]
auto_scale_lr = dict(base_batch_size=16)
