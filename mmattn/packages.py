"""Which of OpenMMLab's packages mmattn needs; they are checked where they are needed."""

import importlib
import re

from .errors import InputError

#: import name -> (lowest version that works, what to install in either family)
PACKAGES = {
    'mmengine': ('0.10.0', 'mmengine or onedl-mmengine'),
    'mmcv': ('2.1.0', 'mmcv or onedl-mmcv'),
    'mmdet': ('3.3.0', 'mmdet or onedl-mmdetection'),
    'mmseg': ('1.2.0', 'mmsegmentation or onedl-mmsegmentation'),
    'mmpretrain': ('1.2.0', 'mmpretrain or onedl-mmpretrain'),
}
#: keys of paramwise_cfg that MMEngine's optimizer constructor reads
PARAMWISE_KEYS = {
    *('custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'dwconv_decay_mult', 'flat_decay_mult'),
    *('dcn_offset_lr_mult', 'bypass_duplicate'),
}


class MissingPackage(InputError, ImportError):
    """A package is missing, too old or incomplete; the message says what to install."""


def require(package: str, purpose: str) -> None:
    """Make sure that a package of OpenMMLab is installed and new enough.

    Args:
        package: import name, a key of ``PACKAGES``.
        purpose: who needs it, the subject of "... needs".

    Raises:
        MissingPackage: if it is missing or too old.
    """
    lowest, distribution = PACKAGES[package]
    try:
        version = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackage(
            f'{purpose} needs {package} {lowest} or newer, which is not installed: '
            f'pip install {distribution}, whichever family the environment has.'
        ) from None
    if version_numbers(version) < version_numbers(lowest):
        raise MissingPackage(
            f'{purpose} needs {package} {lowest} or newer, but {version} is installed: upgrade '
            f'{distribution}, whichever the environment has.'
        )


def require_ops(purpose: str) -> None:
    """Make sure that mmcv has its compiled operators (NMS, RoIAlign ...).

    Raises:
        MissingPackage: if they do not import.
    """
    try:
        importlib.import_module('mmcv.ops')
    except ImportError as error:
        raise MissingPackage(
            f'{purpose} needs the compiled operators of mmcv, which do not import ({error}): install the '
            f'full mmcv or onedl-mmcv, compiled for the torch at hand, not mmcv-lite.'
        ) from None


def version_numbers(version: str) -> tuple[int, ...]:
    """(2, 11, 0) of '2.11.0+cpu'."""
    return tuple(int(part) for part in re.findall(r'\d+', version)[:3])
