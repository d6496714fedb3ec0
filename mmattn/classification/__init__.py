"""What the papers' ImageNet recipes need beside MMPretrain.

Without MMPretrain this package is empty, so that ``tools/complexity.py`` can still read the configs.
"""

import importlib.util

if importlib.util.find_spec('mmpretrain'):
    from .head import NormLinearClsHead
    from .mixing import MixThenErase
    from .schedule import TimmCosineLR
    from .token_labels import CropTokenLabels, LoadTokenLabels, MoveTokenLabels
    from .volo import TokenLabelClassifier, VOLOHead

    __all__ = [
        'CropTokenLabels',
        'LoadTokenLabels',
        'MixThenErase',
        'MoveTokenLabels',
        'NormLinearClsHead',
        'TimmCosineLR',
        'TokenLabelClassifier',
        'VOLOHead',
    ]
