"""Training a backbone from the features of a frozen teacher, on images without labels.

Without MMPretrain this package is empty, so that ``tools/complexity.py`` can still read the configs.
"""

import importlib.util

if importlib.util.find_spec('mmpretrain'):
    from .blocks import BlockDistiller, BlockErrors, WholeModelHook
    from .distiller import FeatureDistiller
    from .hooks import BackboneCheckpointHook, FeatureImagesHook, TeacherSimilarity
    from .loss import FeatureLoss
    from .unlabelled import MultiScaleBatchSampler, UnlabelledImages
    from .views import FixedViews, PackViews, StudentColors, ViewCrop, ViewPreprocessor

    __all__ = [
        'BackboneCheckpointHook',
        'BlockDistiller',
        'BlockErrors',
        'FeatureDistiller',
        'FeatureImagesHook',
        'FeatureLoss',
        'FixedViews',
        'MultiScaleBatchSampler',
        'PackViews',
        'StudentColors',
        'TeacherSimilarity',
        'UnlabelledImages',
        'ViewCrop',
        'ViewPreprocessor',
        'WholeModelHook',
    ]
