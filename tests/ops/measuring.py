"""Numbers of threads, errors of results, and sizes of tensors."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


@contextmanager
def torch_threads(count):
    """In this block, torch and the library have a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def differences(found, expected):
    """The largest of each tensor, as shares of the largest number."""
    return [((x - y).abs().max() / y.abs().max()).item() for x, y in zip(found, expected, strict=True)]


class TensorSizes(TorchDispatchMode):
    """``found`` gets the number of elements of each tensor that is made in this block."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.found.extend(t.numel() for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor))
        return out
