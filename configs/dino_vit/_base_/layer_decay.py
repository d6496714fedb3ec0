# For fine-tuning: the values of MMSegmentation's UperNet with MAE. The learning rate falls from block to block towards
# the stem.
layer_decay = dict(
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.65, flat_decay_mult=0.0),
)
