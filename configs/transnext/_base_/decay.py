# Tensors without weight decay, besides norms, in all recipes of TransNeXt's code. 'cpb' is the MLP of positions.
no_decay = {
    name: dict(decay_mult=0.0) for name in ('attn.query_embedding', 'relative_pos_bias_local', 'cpb', 'temperature')
}
# of detectors and UperNets: norms of the backbone
paramwise_cfg = dict(custom_keys=dict(no_decay, norm=dict(decay_mult=0.0)))
