# Mask2Former for instance segmentation, 50 epochs with large-scale jitter: MMDetection's recipe, for Swin-T with drop
# path 0.3. Add the backbone and panoptic_head.in_channels.
_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', '../schedules/slow_backbone.py']
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False)  # The training counts steps, not epochs.
)

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.slow_backbone))
