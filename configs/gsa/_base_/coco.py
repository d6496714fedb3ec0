# Settings of a GSA-ResNet in a detector, beside norm_cfg. MMDetection's ResNet keeps the statistics of ImageNet
# (norm_eval=True). Attention over larger maps has others.
settings = dict(
    # 1333 rounded up to a multiple of 32: every distance in a training image has its own embedding, which starts as the
    # classifier's, or at 0 if that has none.
    img_size=1344,
    frozen_stages=1,  # as MMDetection's ResNet: the stem and the first group, which have no attention
)
