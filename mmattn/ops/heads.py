import torch
from torch import Tensor

from .tracing import is_tracing


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, ..., heads * d), N places -> (B, heads, N, d)."""
    return x.flatten(1, -2).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, heads, N, d) -> (B, N, heads * d)."""
    x = x.transpose(1, 2)
    if is_tracing():  # ONNX decomposes attention into steps whose result has another layout, which no view fits
        x = x.clone(memory_format=torch.contiguous_format)
    return x.flatten(2)
