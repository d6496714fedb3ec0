# COCO 2017 without masks, short side 800. The environment variable COCO_ROOT names another folder.
_base_ = ['mmdet::_base_/datasets/coco_detection.py', './coco_tta.py']

data_root = '{{$COCO_ROOT:data/coco}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_val2017.json')
test_evaluator = val_evaluator
