backbone = dict(type='ResNet', depth=50)
in_channels = [256, 512, 1024, 2048]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'))
