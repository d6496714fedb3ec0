"""What ImageNet classifiers need beside MMPretrain.

A config of a classifier can be read without MMPretrain, as ``tools/complexity.py`` does.
"""

import importlib.util

if importlib.util.find_spec('mmpretrain'):
    from .head import NormLinearClsHead

    __all__ = ['NormLinearClsHead']
