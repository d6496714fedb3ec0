# Table 6. MMATTN_ROW=gsa-r101-all chooses a row. Each starts from the ImageNet classifier of its name.
_base_ = './_base_/cifar100.py'
rows = {
    'r38': dict(depth=38, gsa_stages=()),
    'gsa-r38-all': dict(depth=38, gsa_stages=(0, 1, 2, 3)),
    'r50': dict(depth=50, gsa_stages=()),
    'gsa-r50-all': dict(depth=50, gsa_stages=(0, 1, 2, 3)),
    'r101': dict(depth=101, gsa_stages=()),
    'gsa-r101-all': dict(depth=101, gsa_stages=(0, 1, 2, 3)),
}
row = '{{$MMATTN_ROW:gsa-r50-all}}'
model = dict(backbone=dict(type='GSAResNet', **rows[row]), head=dict(in_channels=2048))
load_from = f'work_dirs/{row}_in1k/epoch_90.pth'
