# MSF's ImageNet weights were not released: training starts from a Swin Transformer.
backbone = dict(type='MSFSwin', arch='small')
in_channels = [96, 192, 384, 768]
pretrained = dict(type='Pretrained', checkpoint='checkpoints/swin_small_patch4_window7_224.pth', warm_start=True)
