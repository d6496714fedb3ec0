# custom_keys of DINO and Mask2Former in TransNeXt's code: the backbone has a tenth of the learning rate, and its biases
# and norms and what decay.py names have no weight decay. The last embedding and the last norm are not named there, and
# learn as fast as the heads.
_base_ = './decay.py'
tenth, tenth_undecayed = dict(lr_mult=0.1), dict(lr_mult=0.1, decay_mult=0.0)
layers = [
    *('.attn.q', '.attn.kv', '.attn.qkv', '.attn.sr', '.attn.proj', '.mlp.fc1', '.mlp.fc2', '.mlp.dwconv'),
    *(f'.patch_embed{stage}.proj' for stage in (1, 2, 3)),
]
norms = [
    *('.norm1.', '.norm2.', '.attn.norm.', 'backbone.norm3.'),
    *(f'.patch_embed{stage}.norm.' for stage in (1, 2, 3)),
]
backbone_keys = {
    **dict.fromkeys([*_base_.no_decay, *norms], tenth_undecayed),
    **{f'{name}.weight': tenth for name in layers},
    **{f'{name}.bias': tenth_undecayed for name in layers},
    '.attn.learnable': tenth,
}
