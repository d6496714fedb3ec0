# Not in the paper: attention is added to the 3 x 3 convolutions of torchvision's ResNet-50. The backbone starts as that
# ResNet.
_base_ = './mask-rcnn_gsa-r50_fpn_1x_coco.py'
model = dict(backbone=dict(keep_conv=True, init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50')))
