# A row is a token mixer of starts.py and its start: "graft" and "blocks" (graft.py after its last epoch, and after that
# of its blocks), "warm-start" or "scratch". A source has one row, as "swin@source". MMATTN_STARTS names the folder with
# a training of each source and, under graft/, of each graft, see docs/grafting.md.
_base_ = '../../../../lab/configs/toy/_base_/starts.py'
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
of_sources = {
    name: dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth')
    for name, (source, _, _) in _base_.models.items()
}
starts = {
    f'{name}@{start}': (name, init_cfg)
    for name, (source, _, warm_start) in _base_.models.items()
    if source != 'mmdet-pvt'
    for start, init_cfg in (
        {
            'graft': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_4.pth'),
            'blocks': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_2.pth'),
            'warm-start': dict(of_sources[name], warm_start=True),
            'scratch': None,
        }
        if warm_start
        else {'source': of_sources[name]}
    ).items()
}
#: row -> a source and a backbone
backbones = {
    row: (_base_.models[name][0], dict(_base_.models[name][1], init_cfg=init_cfg))
    for row, (name, init_cfg) in starts.items()
}
