# Weight decay of detectors and segmentors as in the releases of ELSA and Swin, whose settings name tensors. Norms of
# the backbone have none. Those of the heads, "bn", have it. ELSA's tables of positions have it: its settings name them
# as Swin does, and no tensor of the release has this name.
paramwise_cfg = dict(custom_keys=dict(norm=dict(decay_mult=0.0)))
