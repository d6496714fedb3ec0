# RTMDet-l for 100 epochs with the data, schedule and group norm that MMDetection has for Swin-B; images and tests are
# 640 x 640. Smaller transformers are not published: their drop path, 0.2, and no decay on position tables are ours. The
# backbone, with maps of strides 8 to 32, and neck.in_channels are to be added.
_base_ = 'mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py'
custom_imports = dict(imports=['mmattn', 'mmattn.engine'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook'))

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.rb': dict(decay_mult=0.0), '.rel_': dict(decay_mult=0.0)}))
auto_scale_lr = dict(base_batch_size=128)  # MMDetection's 16 is not the batch of its learning rate.
