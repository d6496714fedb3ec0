# GSA-R50 for detectors, warm from an ImageNet ResNet-50. No weights with attention exist.
backbone = dict(
    type='GSAResNet',
    depth=50,
    # 1333 and its padding to a multiple of 32: there are no trained tables to stretch, so every distance in a training
    # picture learns an embedding of its own.
    img_size=1344,
    frozen_stages=1,  # as MMDetection's ResNet: the stem and the first group, which are whole
    # Unlike MMDetection's ResNet, which keeps the statistics of ImageNet (norm_eval=True): the norms within and after
    # attention have none of it, and two pictures on a GPU are too few for statistics of their own.
    norm_cfg=dict(type='SyncBN'),
    init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
)
in_channels = [256, 512, 1024, 2048]
