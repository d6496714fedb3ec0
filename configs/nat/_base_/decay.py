# Weight decay of detectors and segmentors as in NAT's code, whose settings name tensors: norms of the backbone and
# tables of positions have none. Norms of the heads, "bn", have it.
paramwise_cfg = dict(custom_keys={'norm': dict(decay_mult=0.0), '.rpb': dict(decay_mult=0.0)})
