# Keys for optim_wrapper: the backbone learns at a tenth of the rate, and its norms and position tables do not decay, as
# in MMDetection's Mask2Former with Swin-T. MMEngine's norm_decay_mult leaves out what a key names, so norms need keys.
# Of the keys that match a parameter, the longest counts.
slow = dict(lr_mult=0.1)
slow_backbone = {
    'backbone': slow,
    '.attn.rb': dict(slow, decay_mult=0.0),
    '.attn.rel_': dict(slow, decay_mult=0.0),
    **{
        f'{norm}.{part}': dict(slow, decay_mult=0.0)
        for norm in (
            *('.norm0', '.norm1', '.norm2', '.norm3', '.norm4', '.downsample.norm', '.patch_embed.norm'),
            *(f'.patch_embed{stage}.norm' for stage in (1, 2, 3, 4)),
            *('.bn1', '.bn2', '.bn3', '.attn.bn', '.downsample.1', '.patch_embed1.conv.1', '.patch_embed1.conv.4'),
        )
        for part in ('weight', 'bias')
    },
}
