# Fine-tuning on iNaturalist 2018. The paper prints no recipe, only accuracies. Here it is ImageNet's recipe at a tenth
# of the rate, from weights trained on ImageNet. INAT2018_ROOT names another folder; it has the images in train_val2018/
# and the lists that README.md writes. The backbone, head.in_channels and load_from are to be added.
_base_ = './in1k.py'
data_root = '{{$INAT2018_ROOT:data/inat2018}}'
data_preprocessor = dict(num_classes=8142)
model = dict(head=dict(num_classes=8142))

dataset = dict(type='CustomDataset', data_root=data_root)
train_dataloader = dict(dataset=dict(dataset, _delete_=True, ann_file='train2018.txt', pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(dataset, _delete_=True, ann_file='val2018.txt', pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-4))
