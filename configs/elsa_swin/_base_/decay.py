# Weight decay of detectors and segmentors as in the releases of ELSA and Swin, whose settings name tensors. Norms of
# the backbone have none. Those of the heads, "bn", have it. Swin's tables of positions have none. ELSA's have it: its
# release names them as Swin does, and no tensor of ELSA has this name.
undecayed = ['norm', '.rb'] if '{{$MMATTN_ROW:elsa-swin-t}}'.startswith('swin-') else ['norm']
paramwise_cfg = dict(custom_keys={name: dict(decay_mult=0.0) for name in undecayed})
