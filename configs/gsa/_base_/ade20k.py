# Settings of a GSA-ResNet in a segmentor.
settings = dict(
    img_size=512,  # the crop: every distance in it learns its own embedding
    # Test images are wider than the crop. Pixels that are farther apart than in training do not attend to each other
    # by position.
    beyond='mask',
    norm_cfg=dict(type='SyncBN'),
)
