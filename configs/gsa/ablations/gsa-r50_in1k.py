# GSA-ResNet-50 with other attention: tables 2, 4 and 5 of GSA, and what its text says was tried.
_base_ = '../gsa-r50-all_in1k.py'
backbones = {
    'gsa': dict(),
    # table 2
    'axial-content': dict(content='axial'),
    # table 4
    'column-row': dict(content=False),
    'content-column': dict(row=False),
    'content-row': dict(column=False),
    'column': dict(content=False, row=False),
    'row': dict(content=False, column=False),
    'content': dict(column=False, row=False),
    # table 5: the groups with attention
    'groups-2-to-4': dict(gsa_stages=(1, 2, 3)),
    'groups-3-to-4': dict(gsa_stages=(2, 3)),
    'group-4': dict(gsa_stages=(3,)),
    'resnet': dict(gsa_stages=()),
    # section 3.1, without sizes
    'softmax-queries': dict(softmax_queries=True),
    'neighbourhood-7': dict(neighbourhood=7),
}
rows = {name: dict(model=dict(backbone=settings)) for name, settings in backbones.items()}
