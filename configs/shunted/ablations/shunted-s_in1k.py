# Tables 7, 8 and 9 of Shunted.
_base_ = '../shunted-s_in1k.py'
backbones = {
    'ours': dict(),
    # table 7: the stem
    'non-overlap': dict(stem='patches'),
    'overlap': dict(stem_convs=0),
    # table 8: the aggregation of tokens
    'linear': dict(aggregation='linear'),
    'convolution': dict(aggregation='convolution'),
    # table 9: the feed-forward layers
    'plain-feed-forward': dict(feed_forward='plain'),
    'conv-feed-forward': dict(feed_forward='conv'),
}
rows = {name: dict(model=dict(backbone=settings)) for name, settings in backbones.items()}
