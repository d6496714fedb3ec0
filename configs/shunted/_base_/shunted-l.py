# Weights of Large were not released: those of the classifier that is trained here.
backbone = dict(type='mmattn.ShuntedTransformer', arch='large')
in_channels = [64, 128, 320, 768]
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/shunted-l_in1k/epoch_300.pth'))
