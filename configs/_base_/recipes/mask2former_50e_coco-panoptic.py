# The same for panoptic segmentation. COCO's panoptic annotations and the package panopticapi are needed.
_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', '../schedules/slow_backbone.py']
custom_imports = dict(imports=['mmattn', 'mmattn.engine'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook'))

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
panoptic, instances = _base_.val_evaluator
val_evaluator = [
    dict(
        panoptic,
        ann_file=f'{data_root}/annotations/panoptic_val2017.json',
        seg_prefix=f'{data_root}/annotations/panoptic_val2017/',
    ),
    dict(instances, ann_file=f'{data_root}/annotations/instances_val2017.json'),
]
test_evaluator = val_evaluator

optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.slow_backbone))
