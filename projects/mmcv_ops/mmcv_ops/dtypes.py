"""Which floating-point numbers the operators compute with."""

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 if it has 16 bits, for sums, logarithms and overlaps."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def native(tensor: Tensor) -> Tensor:
    """Return the tensor in a dtype of torchvision's kernels: they have float16 on a GPU, but no bfloat16."""
    return tensor if tensor.dtype is torch.float16 and tensor.is_cuda else wide(tensor)
