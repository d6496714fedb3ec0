# MSF's ImageNet weights were not released: detectors and segmentors start from a classifier that was trained here.
backbone = dict(type='mmattn.MSFSwin', arch='tiny')
in_channels = [96, 192, 384, 768]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/msf-swin-t_in1k/epoch_100.pth'))
