"""Attention backbones for OpenMMLab's classifiers, detectors and segmentors; importing registers them."""

from typing import TYPE_CHECKING

from .packages import mmseg_bases, require
from .version import __version__

require('mmengine', 'mmattn')

# Before what may be missing a package: MMEngine hides an ImportError until it has the registry.
from . import registry  # noqa: E402, F401, I001
from . import backbones  # noqa: E402

if TYPE_CHECKING:
    from .own_data import start

__all__ = ['__version__', 'backbones', 'mmseg_bases', 'start']


def __getattr__(name: str) -> object:
    """``start``, which only a user who calls it needs to import."""
    if name != 'start':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from .own_data import start

    return start
