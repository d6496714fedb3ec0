# RTMDet-l, 100 epochs, with images of 640 x 640 for training and test. Source: MMDetection's recipe for Swin-B, with
# its data, schedule and group norm. Recipes for smaller transformers are not published. Our additions: drop path 0.2,
# and no weight decay on position tables. Add a backbone with feature maps of strides 8 to 32, and neck.in_channels.
_base_ = 'mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py'

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'.relative_position': dict(decay_mult=0.0), '.rel_': dict(decay_mult=0.0)})
)
auto_scale_lr = dict(base_batch_size=128)  # MMDetection has 16, but its learning rate is for 128 images.
