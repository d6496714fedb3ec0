# Settings of a GSA-ResNet in a detector.
settings = dict(
    # 1333 rounded up to a multiple of 32. There are no trained tables to stretch, so every distance in a training image
    # learns its own embedding.
    img_size=1344,
    frozen_stages=1,  # as MMDetection's ResNet: the stem and the first group, which have no attention
    # MMDetection's ResNet keeps the statistics of ImageNet (norm_eval=True). The norms within and after attention have
    # none, and two images on a GPU are too few for statistics of their own.
    norm_cfg=dict(type='SyncBN'),
)
