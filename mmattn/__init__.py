"""Attention backbones for OpenMMLab's classifiers, detectors and segmentors; importing registers them."""

from .packages import mmseg_bases, require
from .version import __version__

require('mmengine', 'mmattn')

from . import backbones  # noqa: E402

__all__ = ['__version__', 'backbones', 'mmseg_bases']
