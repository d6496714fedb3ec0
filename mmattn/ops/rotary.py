"""Rotary position embeddings along rows and columns: DINOv3's, and one in pixels."""

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


def rotation(
    height: int, width: int, channels: int, base: float, like: Tensor, pixels: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Sines and cosines of the angles by which the channels of a head are rotated at each position of a map.

    Rows and columns have coordinates from -1 to 1, those of the pixels' centres, whatever the size of the map. With
    d channels, the angles of a coordinate y are :math:`2 \pi y / base^{4 i / d}`, i = 0, ..., d / 4 - 1. A half of the
    d / 2 angles is of the row, the other of the column.

    timm's ``RotaryEmbeddingDinoV3`` computes the same on the CPU, and copies it to the GPU in each forward pass.
    Coordinates and periods are of float32, as there.

    Args:
        channels: d, of a head; a multiple of 4.
        like: a tensor of the device; if it is of float64, so are the results. Otherwise they are of float32.
        pixels: coordinates are the numbers of rows and columns instead, and angles :math:`y / base^{i / (d / 4 - 1)}`,
            so that positions mean the same on maps of all sizes.

    Returns:
        two tensors (height, width, 1, d), whose second half repeats the first.
    """
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    exact = dtype if pixels else torch.float32
    steps = torch.arange(channels // 4, device=like.device, dtype=exact)
    power = steps / max(channels // 4 - 1, 1) if pixels else 2 * steps / (channels // 2)
    # torch.tensor would copy the number to the GPU, and wait for it.
    periods = (torch.full((), base, dtype=exact, device=like.device) ** power).to(dtype)
    rows, columns = (torch.arange(size, device=like.device, dtype=exact) for size in (height, width))
    if not pixels:
        rows, columns = (2 * ((each + 0.5) / size) - 1 for each, size in ((rows, height), (columns, width)))
    # 2 pi as a literal: torch.compile makes math.pi an input of a graph, which two recomputed blocks cannot share.
    turn = 1 if pixels else 6.283185307179586
    y, x = (turn * place.to(dtype)[:, None] / periods for place in (rows, columns))

    def at_positions(of_rows: Tensor, of_columns: Tensor) -> Tensor:
        half = torch.cat((of_rows[:, None].expand(-1, width, -1), of_columns.expand(height, -1, -1)), -1)[:, :, None]
        return torch.cat((half, half), -1)

    return at_positions(y.sin(), x.sin()), at_positions(y.cos(), x.cos())


def rotated(x: Tensor, sin: Tensor, cos: Tensor, num_heads: int) -> Tensor:
    """Queries or keys (B, H, W, C), with pairs of channels rotated: channel i of a head goes with i + d / 2.

    Args:
        sin, cos: of :func:`rotation`.
    """
    heads = x.unflatten(-1, (num_heads, -1))
    first, second = heads.chunk(2, -1)
    return (heads * cos + torch.cat((-second, first), -1) * sin).to(x.dtype).flatten(-2)


def turned(tokens: Tensor, prefix: int, shape: torch.Size, num_heads: int, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys (B, P + H * W, C) of P prefix tokens and a map, where those of the map are rotated.

    Args:
        prefix: P. These tokens have no position.
        shape: of the map, (B, H, W, C).
        angles: of :func:`rotation`.
    """
    of_map = rotated(tokens[:, prefix:].view(shape), *angles, num_heads).flatten(1, -2)
    return torch.cat((tokens[:, :prefix], of_map), 1) if prefix else of_map


def rotary_embed(tokens: Tensor, prefix: int, shape: torch.Size, num_heads: int, base: float | None) -> Tensor:
    """:func:`turned` by the angles of a base of :func:`rotation`; None: there are no positions."""
    if base is None:
        return tokens
    return turned(tokens, prefix, shape, num_heads, rotation(*shape[1:3], shape[3] // num_heads, base, tokens))
