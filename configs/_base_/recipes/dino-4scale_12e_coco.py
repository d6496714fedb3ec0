# DINO-4scale for 12 epochs: MMDetection's recipe for R50, which is also detrex's for Swin-T
# (dino_swin_tiny_224_4scale_12ep, with drop path 0.1 and no decay on norms). No decay on position tables is ours. The
# backbone, with maps of strides 8 to 32, and neck.in_channels are to be added.
_base_ = ['mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', '../datasets/coco_tta.py', '../schedules/slow_backbone.py']
custom_imports = dict(imports=['mmattn', 'mmattn.engine', 'mmattn.detection'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=3))

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=_base_.slow_backbone))
