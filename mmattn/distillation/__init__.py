"""Training a backbone from the features of a frozen teacher, on images without labels.

Without MMPretrain this package is empty, so that ``tools/complexity.py`` can still read the configs.
"""

import importlib.util

if importlib.util.find_spec('mmpretrain'):
    from .distiller import FeatureDistiller
    from .loss import FeatureLoss

    __all__ = ['FeatureDistiller', 'FeatureLoss']
