import inspect

from torch import Tensor, nn

from ..arguments import check_flags
from ..errors import near_misses
from ..ops.layer_norm import kernels_serve, sum_and_norm_triton

BATCH_NORMS = {'BN': nn.BatchNorm2d, 'SyncBN': nn.SyncBatchNorm}


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """``norm(x)``, a layer norm of tokens (B, ..., C) that linear layers alone read: on a GPU a single kernel, whose
    result has the dtype of x, as autocast would round it."""
    if not isinstance(norm, nn.LayerNorm) or not kernels_serve(x, norm):
        return norm(x)
    return sum_and_norm_triton(x, None, norm.weight, norm.bias, eps=norm.eps, dtype=x.dtype)[1]


def batch_norm(dim: int, norm_cfg: dict) -> nn.Module:
    """Batch norm of (B, dim, H, W) from an OpenMMLab ``norm_cfg``, without MMCV.

    Args:
        dim: channels.
        norm_cfg: ``type`` is a key of ``BATCH_NORMS``; ``requires_grad=False`` freezes scale and offset; other keys
            (``eps``, ``momentum``) are arguments of torch's module.

    Raises:
        ValueError: if the type or another key is unknown, or ``requires_grad`` is not True or False.
    """
    arguments = dict(norm_cfg) if isinstance(norm_cfg, dict) else {}
    norm_type, requires_grad = arguments.pop('type', None), arguments.pop('requires_grad', True)
    if not isinstance(norm_type, str) or norm_type not in BATCH_NORMS:
        raise ValueError(f'norm_cfg must be a dict whose type is one of {", ".join(BATCH_NORMS)}, not {norm_cfg!r}')
    known = [key for key in inspect.signature(nn.BatchNorm2d).parameters if key != 'num_features']
    for key in arguments:
        if key not in known:
            raise ValueError(f'norm_cfg has no key {key}{near_misses(key, known)}')
    check_flags(**{'norm_cfg: requires_grad': requires_grad})
    return BATCH_NORMS[norm_type](dim, **arguments).requires_grad_(requires_grad)
