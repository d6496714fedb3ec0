"""The ELSA operator: equations 5, 7 and 8 of "ELSA: Enhanced Local Self-Attention for Vision Transformer".

Layers call ``elsa_attention``. Every backend takes the arguments of ``elsa_attention_reference``, which tests compare
with. Layers with other filters than a softmax call its parts, the functions ``neighbourhood_...``.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from . import library
from .backend import HALF_OR_SINGLE, HAS_TRITON, check_maps, check_triton, choose_backend, named_backend, on_device
from .elsa_cpu import check_neighbourhoods, neighbourhood_sum_cpu, within
from .tracing import is_exporting, is_tracing, is_transforming

#: pixels of a row that are multiplied together by the backend 'band'
BAND = 8


def elsa_attention(
    logits: Tensor,
    value: Tensor,
    ghost_mul: Tensor | None = None,
    ghost_add: Tensor | None = None,
    dilation: int = 1,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Aggregate the k x k neighbourhood of every pixel with attention weights of its own.

    .. math::
        f_i = \sum_{j \in \Theta} \hat h^c_{j-i} v_j, \qquad
        \hat h^c = \mathrm{mul}^c \, \mathrm{softmax}_j(\mathrm{logits}^{head(c)}) + \mathrm{add}^c

    Neighbours are in row-major order. Outside the map the value is zero, and the softmax is not masked there. Channel c
    belongs to head ``c // (C / heads)``, as in the released weights (the paper writes c mod heads).

    Args:
        logits: (B, H, W, heads, k * k) Hadamard attention before the softmax, k odd.
        value: (B, H, W, C), C divisible by heads.
        ghost_mul: (C, k, k), the matrix :math:`O^\lambda` of equation 8; None means ones.
        ghost_add: (C, k, k), the matrix :math:`\gamma S` of equation 8; None means zeros.
        dilation: distance of neighbours, in pixels.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference', 'shifted' (any device), 'band' (for ONNX), 'cpp' (the CPU, at most 32 bits) or 'triton'
            (GPUs, no dropout). The last two have no second derivatives and are not for torch.func. None chooses the
            fastest that can serve: :func:`fastest`.

    Returns:
        (B, H, W, C), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(dropout_p, logits=logits, value=value, ghost_mul=ghost_mul, ghost_add=ghost_add)
    check_neighbourhoods('logits', logits, value, dilation)
    shape = (value.shape[-1], *[math.isqrt(logits.shape[-1])] * 2)
    for name, ghost in (('ghost_mul', ghost_mul), ('ghost_add', ghost_add)):
        if ghost is not None and ghost.shape != shape:
            raise ValueError(f'{name} must be {shape}, not {tuple(ghost.shape)}')
    backend = fastest(logits, value, ghost_mul, dropout_p) if backend is None else backend
    function = named_backend(BACKENDS, backend)
    return function(logits, value, ghost_mul, ghost_add, within(dilation, value), dropout_p)


def neighbourhood_sum(weights: Tensor, value: Tensor, mul: Tensor | None = None, dilation: int = 1) -> Tensor:
    r"""The sum of ``elsa_attention`` with any weights: :math:`f_i = \sum_j \mathrm{mul}^c_{j-i} w_{i, j-i} v_j`.

    Args:
        weights: (B, H, W, heads, k * k), k odd.
        value: (B, H, W, C), C divisible by heads.
        mul: (C, k * k), or (B, C, k * k) for each image; None means ones.
        dilation: distance of neighbours, in pixels.

    Returns:
        (B, H, W, C), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other.
    """
    check_maps(weights=weights, value=value, mul=mul)
    check_neighbourhoods('weights', weights, value, dilation)
    shape = (*value.shape[:1], value.shape[-1], weights.shape[-1])
    if mul is not None and mul.shape not in (shape, shape[1:]):
        raise ValueError(f'mul must be {shape[1:]} or {shape}, not {tuple(mul.shape)}')
    compiled = library.takes(weights, value, dtypes=HALF_OR_SINGLE) and fastest(weights, value, mul) == 'cpp'
    return (_summed_cpp if compiled else _summed)(weights, value, mul, None, within(dilation, value))


def neighbourhood_products(query: Tensor, key: Tensor, kernel_size: int) -> Tensor:
    """:math:`q_i k_j` for all neighbours j, zero outside the map, without a copy per neighbour.

    query, key: (B, H, W, heads, d) -> (B, H, W, heads, k * k), in at least float32.
    """
    zero = query.new_zeros((), dtype=torch.promote_types(query.dtype, torch.float32)).expand_as(query)
    neighbours = _neighbours(_pad(key, kernel_size**2, 1), key.shape, 1)
    # addcmul is a product that counts of operations see.
    return torch.stack([torch.addcmul(zero, query, neighbour).sum(-1) for neighbour in neighbours], -1)


def neighbourhood_shift(x: Tensor, dilation: int = 1) -> Tensor:
    """(B, H, W, heads, k * k) -> the same shape: for each neighbour j the number of j in the map at j, zero outside."""
    H, W, taps = x.shape[1], x.shape[2], x.shape[-1]
    offsets = itertools.product(range(0, math.isqrt(taps) * dilation, dilation), repeat=2)
    maps = zip(_pad(x, taps, dilation).unbind(-1), offsets)
    return torch.stack([numbers[:, row : row + H, column : column + W] for numbers, (row, column) in maps], -1)


def elsa_attention_reference(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """Equations 7 (its softmax), 8 and 5 as they are written, over k * k unfolded copies of the value map."""
    B, H, W, C = value.shape
    heads, taps = logits.shape[-2:]
    k = math.isqrt(taps)
    h = F.dropout(logits.softmax(-1), dropout_p).to(value.dtype)  # eq. 7
    h_hat = h.repeat_interleave(C // heads, dim=3)  # (B, H, W, C, taps)
    if ghost_mul is not None:
        h_hat = h_hat * ghost_mul.flatten(1)  # eq. 8
    if ghost_add is not None:
        h_hat = h_hat + ghost_add.flatten(1)
    v = F.unfold(value.permute(0, 3, 1, 2), k, dilation=dilation, padding=dilation * (k // 2))
    v = v.view(B, C, taps, H, W).permute(0, 3, 4, 1, 2)  # (B, H, W, C, taps)
    return (h_hat * v).sum(-1)  # eq. 5


def elsa_attention_shifted(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum over k * k shifted views of the zero-padded value map, without a copy per neighbour.

    The static part of equation 8 does not depend on the pixel, so it is a depth-wise convolution of the value map.
    """
    return _summed(F.dropout(logits.softmax(-1), dropout_p), value, *_by_channel(ghost_mul, ghost_add), dilation)


def elsa_attention_band(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum as products of matrices: rows of :data:`BAND` pixels times all pixels that they attend to. Half of
    the numbers in these matrices are zero, but runtimes of ONNX need a fraction of the time of 49 shifted sums.

    With a multiplier, or dilated, it is 'shifted'."""
    if ghost_mul is not None or dilation > 1:
        return elsa_attention_shifted(logits, value, ghost_mul, ghost_add, dilation, dropout_p)
    # Zero times NaN or infinity would spread them to a whole band: they are left out, and put where they reach, as NaN.
    bad = ~value.isfinite()
    out = _band_sum(F.dropout(logits.softmax(-1), dropout_p).to(value.dtype), value.masked_fill(bad, 0))
    out = out.masked_fill(_reached(bad, math.isqrt(logits.shape[-1])), math.nan)
    return out if ghost_add is None else out + _static(value, ghost_add.flatten(1), 1)


def _reached(bad: Tensor, k: int) -> Tensor:
    """Which numbers of a map (B, H, W, C) have one of ``bad`` among their k x k neighbours."""
    counts = bad.float().permute(0, 3, 1, 2)
    counts = F.max_pool2d(counts, (k, 1), 1, (k // 2, 0))
    return F.max_pool2d(counts, (1, k), 1, (0, k // 2)).permute(0, 2, 3, 1) > 0


def _band_sum(weights: Tensor, value: Tensor) -> Tensor:
    """``sum_j weights[..., j] * shift_j(value)``; weights: (B, H, W, heads, k * k), value: (B, H, W, C)."""
    H, W = value.shape[1:3]
    heads, taps = weights.shape[3:]
    k = math.isqrt(taps)
    border, blocks = k // 2, (W + BAND - 1) // BAND
    right = blocks * BAND - W
    width = BAND + k - 1  # columns that a block of pixels attends to
    # No dimension is the number of blocks alone: if that may be 1, torch does not export one graph for all sizes.
    # Pixel x of a block has weight (i, j) at column x + j of row i. A row of the matrix is one number shorter than what
    # it is cut from, so each pixel starts one column later.
    weights = F.pad(weights.permute(0, 3, 1, 2, 4), (0, 0, 0, right)).flatten(2, 3)  # (B, heads, H * columns, k * k)
    weights = F.pad(weights.unflatten(3, (k, k)), (0, BAND - 1)).flatten(3)
    weights = F.pad(weights, (0, 1)).unflatten(2, (-1, BAND)).flatten(3)
    weights = weights[..., : BAND * k * width].unflatten(3, (BAND, -1))  # (B, heads, H * blocks, BAND, k * width)
    padded = F.pad(value, (0, 0, border, border + right, border, border)).unflatten(3, (heads, -1))
    column = torch.arange(blocks * width, device=value.device)
    near = padded.permute(0, 3, 1, 2, 4).index_select(3, column // width * BAND + column % width)
    near = near.flatten(2, 3).unflatten(2, (-1, width)).flatten(3)  # (B, heads, (H + k - 1) * blocks, width * d)
    part = torch.arange(H * blocks * k, device=value.device)
    block = part // k
    near = near.index_select(2, block + part % k * blocks)  # k rows for each block
    near = near.unflatten(2, (-1, k)).flatten(3).unflatten(3, (k * width, -1))  # (B, heads, H * blocks, k * width, d)
    out = (weights @ near).flatten(2, 3).unflatten(2, (H, -1))  # (B, heads, H, columns, d)
    out = out.permute(0, 2, 3, 1, 4).flatten(3)
    return out.index_select(2, torch.arange(W, device=value.device))  # see mmattn.layers.any_size.crop


def elsa_attention_cpp(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum in one pass over the map, in C++ and float32."""
    library.check_takes(logits, value, dtypes=HALF_OR_SINGLE)
    attention = F.dropout(logits.float().softmax(-1), dropout_p)
    return _summed_cpp(attention, value, *_by_channel(ghost_mul, ghost_add), dilation)


def _by_channel(*ghosts: Tensor | None) -> Iterator[Tensor | None]:
    """Ghost matrices (C, k, k) -> (C, k * k)."""
    return (None if ghost is None else ghost.flatten(1) for ghost in ghosts)


def _summed_cpp(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    mul, add = (None if ghost is None else ghost.float().transpose(-1, -2) for ghost in (mul, add))
    return neighbourhood_sum_cpu(weights.float(), value.float(), mul, add, dilation).to(value.dtype)


def _summed(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    """``sum_j (weights[..., j] * mul[j] + add[j]) * shift_j(value)``, see ``neighbourhood_sum``. add: (C, k * k), None.

    In a graph, torch differentiates, fuses or exports the single steps.
    """
    heads = weights.shape[-2]
    if mul is not None:  # (taps, heads, C / heads) or (taps, B, 1, 1, heads, C / heads)
        mul = mul.to(value.dtype).movedim(-1, 0).unflatten(-1, (heads, -1))
        mul = mul if mul.dim() == 3 else mul[:, :, None, None]
    # Neighbours come first, so that each step of the sum reads one contiguous map.
    weights = weights.to(value.dtype).permute(4, 0, 1, 2, 3).contiguous()
    shifted_sum = _shifted_sum if is_tracing() or is_transforming() else _ShiftedSum.apply
    out = shifted_sum(weights, value.unflatten(-1, (heads, -1)), mul, dilation).flatten(-2)
    return out if add is None else out + _static(value, add, dilation)


def _static(value: Tensor, add: Tensor, dilation: int) -> Tensor:
    """``sum_j add[j] * shift_j(value)``, a depth-wise convolution; value: (B, H, W, C), add: (C, k * k)."""
    k = math.isqrt(add.shape[-1])
    kernel = add.to(value.dtype).view(-1, 1, k, k)
    x = value.permute(0, 3, 1, 2)
    return F.conv2d(x, kernel, padding=dilation * (k // 2), dilation=dilation, groups=len(add)).permute(0, 2, 3, 1)


def _shifted_sum(attention: Tensor, value: Tensor, mul: Tensor | None, dilation: int) -> Tensor:
    """``sum_j attention[j] * mul[j] * shift_j(value)``.

    attention: (taps, B, H, W, heads); value: (B, H, W, heads, d); mul: (taps, heads, d), (taps, B, 1, 1, heads, d) or
    None.
    """
    # Half-precision sums of k * k terms are kept in float32.
    out = torch.zeros_like(
        value, dtype=torch.promote_types(value.dtype, torch.float32), memory_format=torch.contiguous_format
    )
    zero = value.new_zeros(())
    # vmap cannot write batched numbers into a tensor that is not.
    add_product = torch.addcmul if is_tracing() or is_transforming() else Tensor.addcmul_
    for j, neighbour in enumerate(_neighbours(_pad(value, len(attention), dilation), value.shape, dilation)):
        weight = attention[j].unsqueeze(-1)
        # addcmul is a product that counts of operations see.
        out = add_product(out, weight if mul is None else torch.addcmul(zero, weight, mul[j]), neighbour)
    return out.to(value.dtype)


class _ShiftedSum(torch.autograd.Function):
    """``_shifted_sum`` whose backward pass makes no copy per neighbour either."""

    @staticmethod
    def forward(ctx, attention: Tensor, value: Tensor, mul: Tensor | None, dilation: int) -> Tensor:
        ctx.save_for_backward(attention, value, mul)
        ctx.dilation = dilation
        return _shifted_sum(attention, value, mul, dilation)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, value, mul = ctx.saved_tensors
        grad = grad.contiguous()
        padded = _pad(value, len(attention), ctx.dilation)
        grad_padded = torch.zeros_like(padded, dtype=torch.promote_types(value.dtype, torch.float32))
        grad_attention = torch.empty_like(attention)
        grad_mul = None if mul is None else torch.empty_like(mul)
        views = zip(_neighbours(padded, value.shape, ctx.dilation), _neighbours(grad_padded, value.shape, ctx.dilation))
        for j, (neighbour, grad_neighbour) in enumerate(views):
            weight = attention[j].unsqueeze(-1)
            product = grad * neighbour
            if mul is None:
                grad_attention[j] = product.sum(-1)
                grad_neighbour.addcmul_(weight, grad)
            else:
                grad_attention[j] = (product * mul[j]).sum(-1)
                grad_mul[j] = (product * weight).sum_to_size(mul[j].shape)
                grad_neighbour.addcmul_(weight * mul[j], grad)
        pad_h, pad_w = ((p - n) // 2 for p, n in zip(padded.shape[1:3], value.shape[1:3]))
        grad_value = grad_padded[:, pad_h : pad_h + value.shape[1], pad_w : pad_w + value.shape[2]]
        return grad_attention, grad_value.to(value.dtype), grad_mul, None


def _pad(value: Tensor, taps: int, dilation: int) -> Tensor:
    border = dilation * (math.isqrt(taps) // 2)
    return F.pad(value, (0, 0, 0, 0, border, border, border, border))


def _neighbours(padded: Tensor, shape: torch.Size, dilation: int) -> Iterator[Tensor]:
    """The k * k shifted views, row-major, of a padded (B, H + 2p, W + 2p, heads, d) map."""
    H, W = shape[1:3]
    for y in range(0, padded.shape[1] - H + 1, dilation):
        for x in range(0, padded.shape[2] - W + 1, dilation):
            yield padded[:, y : y + H, x : x + W]


def _triton(logits: Tensor, value: Tensor, *arguments) -> Tensor:
    """:func:`mmattn.ops.elsa_triton.elsa_attention_triton`, imported when it is needed: Triton is not everywhere."""
    check_triton(value)
    from .elsa_triton import elsa_attention_triton

    with on_device(value):
        return elsa_attention_triton(logits, value, *arguments)


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': elsa_attention_reference,
    'shifted': elsa_attention_shifted,
    'band': elsa_attention_band,
    'cpp': elsa_attention_cpp,
    'triton': _triton,
}


def fastest(logits: Tensor, value: Tensor, ghost_mul: Tensor | None = None, dropout_p: float = 0.0) -> str:
    """The backend that None stands for.

    The C++ code serves the CPU; Triton's kernels serve GPUs, if there is no dropout; neither is for graphs
    to be exported or for torch.func, and each serves after :func:`~.backend.choose_backend` has checked it.

    Args:
        logits: or a tensor of their device and dtype.
        value, ghost_mul, dropout_p: of :func:`elsa_attention`.
    """
    names = *_compiled(logits, value, dropout_p), 'band' if is_exporting() else 'shifted'
    # The heads of 32 channels, 7 x 7 neighbours and ghost summand of all released models: the same kernels.
    ghost = (64, 7, 7)
    case = (1, 2, 49, 9, 10), (1, 9, 10, 64), None if ghost_mul is None else ghost, ghost
    return choose_backend('elsa_attention', names, value.device, value.dtype, _tap_major, case)


def _compiled(logits: Tensor, value: Tensor, dropout_p: float) -> tuple[str, ...]:
    """The compiled backends that can serve."""
    if library.takes(logits, value, dtypes=HALF_OR_SINGLE):
        return ('cpp',)
    served = value.is_cuda and value.dtype in HALF_OR_SINGLE and not dropout_p
    return ('triton',) if HAS_TRITON and served and not is_exporting() and not is_transforming() else ()


def _tap_major(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, backend: str
) -> Tensor:
    """``elsa_attention`` of logits (B, heads, k * k, H, W), in memory as the layer makes them for the kernels."""
    return elsa_attention(logits.permute(0, 3, 4, 1, 2), value, ghost_mul, ghost_add, backend=backend)
