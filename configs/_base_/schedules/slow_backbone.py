# custom_keys for optim_wrapper.paramwise_cfg. The backbone has a tenth of the learning rate, and its norms and position
# tables have no weight decay, as in MMDetection's Mask2Former with Swin-T. NAT's tables have it, as in its code. The
# key 'backbone' switches norm_decay_mult off for the backbone, so each of its norms needs a key. If several keys match
# a parameter, MMEngine takes the longest.
slow = dict(lr_mult=0.1)
slow_backbone = {
    'backbone': slow,
    '.attn.relative_position': dict(slow, decay_mult=0.0),
    '.attn.rel_': dict(slow, decay_mult=0.0),
    **{
        f'{norm}.{part}': dict(slow, decay_mult=0.0)
        for norm in (
            *('backbone.norm', '.patch_norm'),
            *('.norm0', '.norm1', '.norm2', '.norm3', '.norm4', '.downsample.norm', '.patch_embed.norm'),
            *(f'.patch_embed{stage}.norm' for stage in (1, 2, 3, 4)),
            *('.bn1', '.bn2', '.bn3', '.attn.bn', '.downsample.1', '.patch_embed1.conv.1', '.patch_embed1.conv.4'),
        )
        for part in ('weight', 'bias')
    },
}
