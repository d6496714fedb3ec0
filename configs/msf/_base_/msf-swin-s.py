# MSF's ImageNet weights were not released: detectors and segmentors start from a classifier that was trained here.
backbone = dict(type='mmattn.MSFSwin', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/msf-swin-s_in1k/epoch_100.pth'))
