# The student's backbone and the teacher are to be added. The student's images are normalised as those of MMDetection
# and MMSegmentation.
# names in timm
teachers = dict(dinov2='vit_base_patch14_reg4_dinov2.lvd142m', dinov3='vit_base_patch16_dinov3.lvd1689m')
model = dict(
    type='mmattn_distillation.FeatureDistiller', data_preprocessor=dict(type='mmattn_distillation.ViewPreprocessor')
)
