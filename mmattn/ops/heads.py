import torch
from torch import Tensor

from .tracing import is_tracing


def join_heads(x: Tensor) -> Tensor:
    """(B, heads, N, d) -> (B, N, heads * d)."""
    x = x.transpose(1, 2)
    if is_tracing():  # ONNX decomposes attention into steps whose result has another layout, which no view fits
        x = x.clone(memory_format=torch.contiguous_format)
    return x.flatten(2)
