"""The rotary position embedding of DINOv3, along rows and columns."""

import torch
from torch import Tensor

from ..arguments import check_finite


def check_rope(base: float | None, channels: int) -> None:
    """Check the base of an embedding, which may be None, for heads of so many channels.

    Raises:
        ValueError: if it is wrong.
    """
    if base is not None:
        check_finite('rope', base, least=1)
        if channels % 4:
            raise ValueError(f'rope needs heads of a multiple of 4 channels, not {channels}')


def rotation(height: int, width: int, channels: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sines and cosines of the angles by which the channels of a head are rotated at each position of a map.

    Rows and columns have coordinates from -1 to 1, those of the pixels' centres, whatever the size of the map. With
    d channels, the angles of a coordinate y are :math:`2 \pi y / base^{4 i / d}`, i = 0, ..., d / 4 - 1. A half of the
    d / 2 angles is of the row, the other of the column.

    timm's ``RotaryEmbeddingDinoV3`` computes the same on the CPU, and copies it to the GPU in each forward pass.
    Coordinates and periods are of float32, as there.

    Args:
        channels: d, of a head; a multiple of 4.
        like: a tensor of the device; if it is of float64, so are the results. Otherwise they are of float32.

    Returns:
        two tensors (height, width, 1, d), whose second half repeats the first.
    """
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    steps = torch.arange(channels // 4, device=like.device, dtype=torch.float32)
    # torch.tensor would copy the number to the GPU, and wait for it.
    periods = torch.full((), base, dtype=torch.float32, device=like.device) ** (2 * steps / (channels // 2))
    rows, columns = (
        (2 * ((torch.arange(size, device=like.device, dtype=torch.float32) + 0.5) / size) - 1).to(dtype)
        for size in (height, width)
    )
    # 2 pi as a literal: torch.compile makes math.pi an input of a graph, which two recomputed blocks cannot share.
    y, x = (6.283185307179586 * place[:, None] / periods.to(dtype) for place in (rows, columns))
    angles = torch.cat((y[:, None].expand(-1, width, -1), x.expand(height, -1, -1)), -1)[:, :, None]
    return tuple(torch.cat((part, part), -1) for part in (angles.sin(), angles.cos()))


def rotated(x: Tensor, sin: Tensor, cos: Tensor, num_heads: int) -> Tensor:
    """Queries or keys (B, H, W, C), with pairs of channels rotated: channel i of a head goes with i + d / 2.

    Args:
        sin, cos: of :func:`rotation`.
    """
    heads = x.unflatten(-1, (num_heads, -1))
    first, second = heads.chunk(2, -1)
    return (heads * cos + torch.cat((-second, first), -1) * sin).to(x.dtype).flatten(-2)


def rotary_embed(tokens: Tensor, prefix: int, shape: torch.Size, num_heads: int, base: float | None) -> Tensor:
    """Queries or keys (B, P + H * W, C) of P prefix tokens and a map, with the positions of the map.

    Args:
        prefix: P. These tokens have no position.
        shape: of the map, (B, H, W, C).
        base: of :func:`rotation`; None: there are no positions.
    """
    if base is None:
        return tokens
    angles = rotation(*shape[1:3], shape[3] // num_heads, base, tokens)
    turned = rotated(tokens[:, prefix:].view(shape), *angles, num_heads).flatten(1, -2)
    return torch.cat((tokens[:, :prefix], turned), 1) if prefix else turned
