"""What ImageNet classifiers need beside MMPretrain.

A config of a classifier can be read without MMPretrain, as ``tools/complexity.py`` does.
"""

import importlib.util

if importlib.util.find_spec('mmpretrain'):
    from .drawing import RGBVisualizationHook
    from .head import NormLinearClsHead
    from .mixing import MixThenErase
    from .schedule import TimmCosineLR

    __all__ = ['MixThenErase', 'NormLinearClsHead', 'RGBVisualizationHook', 'TimmCosineLR']
