# A reconstruction, see README.md. No weights were released: segmentors and detectors start from a classifier that was
# trained here.
backbone = dict(type='ELSAVOLO', arch='d1')
in_channels = [192, 384, 384, 384]
pretrained = dict(type='Pretrained', checkpoint='work_dirs/elsa-volo-d1_in1k/epoch_310.pth')
