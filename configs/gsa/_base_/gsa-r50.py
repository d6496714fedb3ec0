# No weights with attention were released: training starts from an ImageNet ResNet-50.
backbone = dict(type='GSAResNet', depth=50)
in_channels = [256, 512, 1024, 2048]
pretrained = dict(type='Pretrained', checkpoint='torchvision://resnet50')
