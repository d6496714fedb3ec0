backbone = dict(type='mmattn.ELSAVOLO', arch='d1')
in_channels = [192, 384, 384, 384]
head = dict(in_channels=384, num_heads=12)  # of a classifier
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/elsa-volo-d1_in1k/epoch_310.pth'))
