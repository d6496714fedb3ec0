"""Attention backbones for OpenMMLab's classifiers, detectors and segmentors; importing registers them."""

from .packages import mmseg_bases, require
from .version import __version__

require('mmengine', 'mmattn')

# Before what may be missing a package: MMEngine hides an ImportError until it has the registry.
from . import registry  # noqa: E402, F401, I001
from . import backbones  # noqa: E402
from .own_data import start  # noqa: E402

__all__ = ['__version__', 'backbones', 'mmseg_bases', 'start']
