# ResNet-50 -> GSA-ResNet-50, the paper's: attention instead of the 3 x 3 convolutions of three groups. Batch norms keep
# the statistics of the ResNet, whose maps are to be met.
_base_ = ['../../../../configs/gsa/_base_/gsa-r50.py', '../_base_/graft.py']
weights = dict(type='Pretrained', checkpoint='torchvision:ResNet50_Weights.IMAGENET1K_V1')
model = dict(
    teacher=dict(model=dict(_base_.backbone, gsa_stages=(), init_cfg=weights)),
    backbone=dict(_base_.backbone, img_size=1344, norm_eval=True),
)
