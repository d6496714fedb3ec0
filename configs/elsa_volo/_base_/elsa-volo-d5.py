backbone = dict(type='mmattn.ELSAVOLO', arch='d5')
in_channels = [384, 768, 768, 768]
head = dict(in_channels=768, num_heads=16, mlp_ratio=4)  # of a classifier
pretrained = dict(backbone, init_cfg=dict(type='Pretrained', checkpoint='work_dirs/elsa-volo-d5_in1k/epoch_310.pth'))
