"""What detectors need beside MMDetection. Without MMDetection, only the pyramid is there."""

import importlib.util

from .simple_pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']

if importlib.util.find_spec('mmdet'):
    from .tta import MaskTTAModel

    __all__ += ['MaskTTAModel']
