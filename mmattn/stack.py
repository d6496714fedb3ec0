"""Which of OpenMMLab's packages mmattn needs, told when they are needed, and what must differ between versions of
torch."""
import importlib
import re

import torch

#: import name -> (lowest version that serves, what to install in either family)
PACKAGES = {
    'mmengine': ('0.10.0', 'mmengine or onedl-mmengine'),
    'mmcv': ('2.1.0', 'mmcv or onedl-mmcv'),
    'mmdet': ('3.3.0', 'mmdet or onedl-mmdetection'),
    'mmseg': ('1.2.0', 'mmsegmentation or onedl-mmsegmentation'),
}

#: whether torch.compile or torch.export is tracing
is_compiling = getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling  # torch 2.1 and 2.2

#: the operator of fused attention on the CPU, which torch's counter of operations leaves out; torch 2.1 has none
cpu_attention = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)


def require(package: str, purpose: str) -> None:
    """Make sure that a package of OpenMMLab's is there and new enough.

    Args:
        package: import name, a key of ``PACKAGES``.
        purpose: what it is needed for, completing "... needs".

    Raises:
        ImportError: in one sentence, what is missing or too old, and what to install.
    """
    lowest, distribution = PACKAGES[package]
    try:
        version = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f'{purpose} needs {package} {lowest} or newer, which is not installed: '
                          f'pip install {distribution}, whichever family the environment has.') from None
    if _numbers(version) < _numbers(lowest):
        raise ImportError(f'{purpose} needs {package} {lowest} or newer, but {version} is installed: upgrade '
                          f'{distribution}, whichever the environment has.')


def require_ops(purpose: str) -> None:
    """Make sure that mmcv has its compiled operators (NMS, RoIAlign ...).

    Raises:
        ImportError: in one sentence, that they are missing, and what to install.
    """
    try:
        importlib.import_module('mmcv.ops')
    except ImportError as error:
        raise ImportError(f'{purpose} needs the compiled operators of mmcv, which do not import ({error}): install the '
                          f'full mmcv or onedl-mmcv, compiled for the torch at hand, not mmcv-lite.') from None


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype to sum in: ``torch.promote_types(dtype, torch.float32)``, which torch 2.1 cannot compile."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r'\d+', version)[:3])
