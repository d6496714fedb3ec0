# A row is a mechanism of starts.py and its start: "graft" and "blocks" (graft.py after its last epoch, and after that
# of its blocks), "warm-start" or "scratch". A source has one row, as "swin@source". MMATTN_STARTS names the folder with
# a training of each source and, under graft/, of each graft, see docs/grafting.md.
_base_ = '../../../../lab/configs/toy/_base_/starts.py'
models = _base_.models
starts = ['graft', 'blocks', 'warm-start', 'scratch']
rows = [
    f'{name}@{start}'
    for name, (source, _, warm_start) in models.items()
    if source != 'mmdet-pvt'
    for start in (starts if warm_start else ['source'])
]
row = '{{$MMATTN_ROW:elsa-swin@graft}}'
name, start = row.split('@')
source, backbone, _ = models[name]
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
of_source = dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth')
weights = {
    'graft': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_4.pth'),
    'blocks': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_2.pth'),
    'warm-start': dict(of_source, warm_start=True),
    'source': of_source,
}
backbone = dict(backbone, init_cfg=weights.get(start))
