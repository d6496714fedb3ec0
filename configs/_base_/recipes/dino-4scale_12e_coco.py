# DINO-4scale, 12 epochs. Source: MMDetection's recipe for R50. detrex uses the same recipe for Swin-T, with drop path
# 0.1 and no weight decay on norms (dino_swin_tiny_224_4scale_12ep). Our addition: position tables have no weight decay.
# Add a backbone with feature maps of strides 8 to 32, and neck.in_channels.
_base_ = ['mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', '../datasets/coco_tta.py', '../schedules/slow_backbone.py']
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=_base_.slow_backbone))
