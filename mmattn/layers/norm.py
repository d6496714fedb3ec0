from torch import nn

BATCH_NORMS = {'BN': nn.BatchNorm2d, 'SyncBN': nn.SyncBatchNorm}


def batch_norm(dim: int, norm_cfg: dict) -> nn.Module:
    """Batch norm of (B, dim, H, W) from OpenMMLab's way of asking for it, without MMCV.

    Args:
        dim: channels.
        norm_cfg: ``type``, a key of ``BATCH_NORMS``; ``requires_grad``, False to freeze scale and offset; the rest goes
            to torch's module (``eps``, ``momentum``).

    Raises:
        ValueError: if the type is another.
    """
    settings = dict(norm_cfg) if isinstance(norm_cfg, dict) else {}
    norm_type, requires_grad = settings.pop('type', None), settings.pop('requires_grad', True)
    if norm_type not in BATCH_NORMS:
        raise ValueError(f'norm_cfg must be a dict whose type is one of {", ".join(BATCH_NORMS)}, not {norm_cfg!r}')
    return BATCH_NORMS[norm_type](dim, **settings).requires_grad_(requires_grad)
