import math

import torch
from torch import Tensor

from .tracing import is_tracing


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, ..., heads * d), N places -> (B, heads, N, d)."""
    B, *places, C = x.shape
    return x.reshape(B, math.prod(places), num_heads, C // num_heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, heads, N, d) -> (B, N, heads * d)."""
    x = x.transpose(1, 2)
    if is_tracing():  # ONNX decomposes attention into steps whose result has another layout, which no view fits
        x = x.clone(memory_format=torch.contiguous_format)
    return x.flatten(2)
