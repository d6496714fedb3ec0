"""What segmentors need beside MMSegmentation, which must be installed."""

from .tta import MapTTAModel

__all__ = ['MapTTAModel']
