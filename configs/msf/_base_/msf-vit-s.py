# MSF's ImageNet weights were not released: detectors and segmentors start from a classifier that was trained here.
backbone = dict(type='mmattn.MSFViT', arch='small')
in_channels = [384, 384, 384, 384]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/msf-vit-s_in1k/epoch_100.pth'))
