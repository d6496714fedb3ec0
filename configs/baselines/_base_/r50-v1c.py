# MMSegmentation's ResNet: three convolutions of 3 x 3 are its stem.
_base_ = './r50.py'
backbone = dict(type='ResNetV1c')
pretrained = dict(backbone, init_cfg=dict(checkpoint='open-mmlab://resnet50_v1c'))
