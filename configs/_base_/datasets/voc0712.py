# VOC for detection: training on VOC 2007 and 2012, test on VOC 2007. The environment variable VOC_ROOT names another
# folder with VOC2007 and VOC2012 in it.
_base_ = ['mmdet::_base_/datasets/voc0712.py', './coco_tta.py']

data_root = '{{$VOC_ROOT:data/VOCdevkit}}'
train_sets = _base_.train_dataloader.dataset.dataset.datasets
train_dataloader = dict(
    dataset=dict(dataset=dict(datasets=[dict(dataset, data_root=data_root) for dataset in train_sets]))
)
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
