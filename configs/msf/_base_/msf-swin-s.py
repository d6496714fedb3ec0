# MSF's ImageNet weights were not released: detectors and segmentors start from a classifier that was trained here.
backbone = dict(type='MSFSwin', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(type='Pretrained', checkpoint='work_dirs/msf-swin_in1k/msf-swin-s/epoch_100.pth')
