# No weights with attention were released: detectors and segmentors start from a classifier that was trained here.
backbone = dict(type='mmattn.GSAResNet', depth=50)
in_channels = [256, 512, 1024, 2048]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/gsa-r50_in1k/epoch_90.pth'))
