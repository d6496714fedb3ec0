# ResNet-50 -> GSA-ResNet-50, the paper's: attention instead of the 3 x 3 convolutions of three groups. Batch norms keep
# the statistics of the ResNet, whose maps are to be met.
_base_ = './_base_/graft.py'
source = dict(type='GSAResNet', depth=50, beyond='mask')
weights = dict(type='Pretrained', checkpoint='torchvision:ResNet50_Weights.IMAGENET1K_V1')
model = dict(
    teacher=dict(model=dict(source, gsa_stages=(), init_cfg=weights)),
    backbone=dict(source, img_size=1344, norm_eval=True),
)
