# As iNaturalist 2018; INAT2019_ROOT names another folder.
_base_ = './inat2018.py'
data_root = '{{$INAT2019_ROOT:data/inat2019}}'
data_preprocessor = dict(num_classes=1010)
model = dict(head=dict(num_classes=1010))
train_dataloader = dict(dataset=dict(data_root=data_root, ann_file='train2019.txt'))
val_dataloader = dict(dataset=dict(data_root=data_root, ann_file='val2019.txt'))
test_dataloader = val_dataloader
