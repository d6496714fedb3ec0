"""What detectors need beside MMDetection. Without MMDetection this package is empty."""

import importlib.util

if importlib.util.find_spec('mmdet'):
    from .tta import MaskTTAModel

    __all__ = ['MaskTTAModel']
