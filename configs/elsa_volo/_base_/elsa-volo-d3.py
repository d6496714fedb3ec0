backbone = dict(type='mmattn.ELSAVOLO', arch='d3')
in_channels = [256, 512, 512, 512]
head = dict(in_channels=512, num_heads=16)  # of a classifier
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/elsa-volo-d3_in1k/epoch_310.pth'))
