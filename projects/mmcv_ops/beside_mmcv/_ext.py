"""What ``mmcv.ops`` imports as its compiled extension, where MMCV was installed without one.

Python prefers a compiled ``_ext`` in the same folder.
"""

from collections.abc import Callable

from mmcv_ops import *  # noqa: F403
from mmcv_ops import no_stand_in


def __getattr__(name: str) -> Callable:
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return no_stand_in(name)
