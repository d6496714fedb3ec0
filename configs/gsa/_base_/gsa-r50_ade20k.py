# GSA-R50 for segmentors, warm from an ImageNet ResNet-50. No weights with attention exist.
backbone = dict(
    type='GSAResNet',
    depth=50,
    img_size=512,  # the crop: every distance in it learns an embedding of its own
    beyond='mask',  # tested on whole pictures, which are wider, distances keep what they learnt
    norm_cfg=dict(type='SyncBN'),
    init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
)
in_channels = [256, 512, 1024, 2048]
