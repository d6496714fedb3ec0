"""The mean-shift operator: the bracket of equation 12 of "Mean-Shift Feature Transformer".

Layers call ``mean_shift_attention``. Every backend takes the arguments of ``mean_shift_attention_reference``, which
tests compare with. ``mean_shift_by_landmarks`` approximates it in linear time, and ``mean_shift_steps`` repeats either.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import attention, is_multiplied
from ..backend import (
    HALF,
    CannotServe,
    autocast_dtype,
    check_maps,
    check_triton,
    named_backend,
    triton_multiplies,
    without_autocast,
)
from ..heads import join_heads, split_heads
from ..tracing import is_exporting, is_transforming

#: whether torch's fused attention on the CPU takes a bias of the logits; that of torch 2.1 does not
_fused = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)
FUSES_BIAS = _fused is not None and 'attn_mask' in str(_fused.default._schema)
#: channels of a head that the Triton kernels take
WIDEST = 64


def mean_shift_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""The shift of every probe towards the mean of the values around its query, weighted by a Gaussian kernel.

    .. math::
        \sum_j \mathrm{softmax}_j\Big(-\frac{\|k_j - q_i\|^2}{2 \sqrt d} + \mathrm{bias}_{ij}\Big) v_j - p_i

    The term in :math:`\|q_i\|^2` is the same for all keys. The softmax cancels it, and the fast backends leave it out.

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, d).
        probe: (B, heads, N, d); None returns the weighted mean itself ("Gauss-Orig." of table 3).
        bias: of the logits, (1 or B, 1 or heads, N, M); None means zeros, and no N x M matrix is made.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference', 'channels' (key norms as further channels of the keys), 'exported' (as one channel, for
            ONNX), 'bias' (key norms added to the bias) or 'triton' (GPUs, 16 bits, d of at most 64, no bias, no
            dropout; key norms in float32; no second derivatives, not for torch.func). None chooses by the device, the
            dtype, the bias, gradients and export.

    Returns:
        (B, heads, N, d), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    check_maps(dropout_p, query=query, key=key, value=value, probe=probe, bias=bias)
    _check(query, key, value, probe, bias)
    function = named_backend(BACKENDS, fastest(key, bias, dropout_p) if backend is None else backend)
    return function(query, key, value, probe, bias, dropout_p)


def projected_mean_shift(
    projected: Tensor, parts: int, num_heads: int, dropout_p: float = 0.0, backend: str | None = None
) -> Tensor:
    """``mean_shift_attention`` of what one projection gives: query, key, value and, if there are four parts, probe.

    'triton' writes the gradients of all parts to one tensor.

    Args:
        projected: (B, N, parts * C).
        parts: 3 or 4.
        num_heads: heads of C / num_heads channels.
        dropout_p, backend: see there.

    Returns:
        (B, N, C).
    """
    query, key, value, *probe = (split_heads(part, num_heads) for part in projected.chunk(parts, -1))
    backend = fastest(key, None, dropout_p) if backend is None else backend
    if backend != 'triton':
        return join_heads(mean_shift_attention(query, key, value, *probe, dropout_p=dropout_p, backend=backend))
    _check_triton(key, None, dropout_p)
    from .triton import projected_mean_shift_triton

    return projected_mean_shift_triton(projected.to(autocast_dtype(projected)), parts, num_heads)


def mean_shift_by_landmarks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    *,
    landmarks: Tensor,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""``mean_shift_attention`` in linear time: Nyström's approximation of the Gaussian kernel by L landmarks.

    .. math::
        S(Q, C) \, (G + \epsilon I)^{-1} D \, S(C, K) \, V - P, \qquad
        G_{ij} = \exp\Big(-\frac{\|c_i - c_j\|^2}{2 \sqrt d}\Big)

    S are the softmax weights of ``mean_shift_attention``, and D are the sums of the rows of :math:`G + \epsilon I`. So
    all weights of a query sum to 1. If the landmarks are the keys, the result is exact but for :math:`\epsilon`. The
    form with three factors is that of "Nyströmformer" (AAAI 2021); there the middle one is a pseudo-inverse.

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, d).
        probe: (B, heads, N, d) or None.
        landmarks: (B, heads, L, d), in the space of the keys, such as means of neighbouring keys.
        dropout_p: probability of dropping a weight of a query to a landmark.
        backend: of ``mean_shift_attention``, for both softmaxes.

    Returns:
        (B, heads, N, d), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    check_maps(dropout_p, key=key, landmarks=landmarks)
    if landmarks.dim() != 4 or (*landmarks.shape[:2], landmarks.shape[3]) != (*key.shape[:2], key.shape[-1]):
        raise ValueError(
            f'landmarks must be (B, heads, L, d) of the keys {tuple(key.shape)}, not {tuple(landmarks.shape)}'
        )
    means = mean_shift_attention(landmarks, key, value, backend=backend)
    with without_autocast(key):  # L x L: too few to save time, and half precision would lose the inverse
        centred = landmarks.to(torch.promote_types(key.dtype, torch.float32))
        centred = centred - centred.mean(-2, keepdim=True)  # smaller norms, the same differences
        square = centred.square().sum(-1, keepdim=True)
        distance = (square + square.mT - 2 * centred @ centred.mT).clamp(min=0)
        kernel = (-distance / 2 / math.sqrt(key.shape[-1])).exp()
        # Landmarks may be equal: the diagonal, which is 1, gets a little more.
        kernel = kernel + 1e-3 * torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
        means = kernel.sum(-1, keepdim=True) * means.to(kernel.dtype)
        means = torch.cholesky_solve(means, torch.linalg.cholesky_ex(kernel)[0]).to(value.dtype)
    return mean_shift_attention(query, landmarks, means, probe, dropout_p=dropout_p, backend=backend)


def mean_shift_steps(
    shift: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None,
    steps: int,
    step_size: float,
) -> Tensor:
    r"""How far T mean-shift steps of one size move a probe: equation 11 of the paper repeated, in a head's channels.

    .. math::
        q \leftarrow q + s \, [K \, \sigma(q) - q], \qquad p \leftarrow p + s \, [V \, \sigma(q) - p]

    Both use the weights :math:`\sigma` of the query before the step. The keys and values stay. One step of size 1 is
    the bracket of equation 12. With one matrix for query and probe and one for key and value, this is the mean
    shift of the paper's reference 9.

    Args:
        shift: from query, key, value and probe to the shift, as ``mean_shift_attention``.
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, d).
        probe: (B, heads, N, d); None is 0.
        steps: T.
        step_size: s, which is :math:`\eta d^{-1/2}` of equation 11.

    Returns:
        (B, heads, N, d), the sum of all movements of the probe.
    """
    moved = torch.zeros_like(query)
    for step in range(steps):
        if step:
            query = query + step_size * shift(query, key, key, query)
        if step_size != 1:
            moved = moved + step_size * (shift(query, key, value, probe) - moved)
    # A step of size 1 ends at the mean, wherever it starts.
    return shift(query, key, value, probe) if step_size == 1 else moved


def mean_shift_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """Equation 12 as it is written, with every pair's distance; temperature as below equation 1."""
    distance = (key.unsqueeze(-3) - query.unsqueeze(-2)).square().sum(-1)  # (B, heads, N, M)
    logits = -distance / 2 / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + bias
    out = F.dropout(logits.softmax(-1), dropout_p).to(value.dtype) @ value
    return out if probe is None else out - probe


def mean_shift_attention_channels(
    query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """Fused attention with half the squared key norm as further channels of the keys: (q, 1) . (k, -|k|^2 / 2).

    If the norm were a bias of the logits, torch would not use its fused backward pass on the CPU, and a GPU would need
    an N x M matrix. The norm takes two channels, so that half precision neither overflows nor loses its digits: a
    coarse one in units of 2048, and the rest, which also carries the whole gradient. Heads are padded to a multiple of
    eight channels for fused kernels.
    """
    d = query.shape[-1]
    # In this unit, fp16 holds norms up to 2048 * 65504. The unit is a local variable, because torch.compile turns
    # globals into inputs of its graph, and recomputed blocks do not find them.
    unit = 2048.0
    norm = -_half_square(key)
    coarse = (norm / unit).clamp(min=torch.finfo(key.dtype).min).to(key.dtype).detach()
    rest = (norm - unit * coarse.to(norm.dtype)).clamp(min=torch.finfo(key.dtype).min).to(key.dtype)
    units, ones = torch.full_like(query[..., :1], unit), torch.ones_like(query[..., :1])
    bias = None if bias is None else bias.to(query.dtype)
    wider = [(query, units, ones), (key, coarse, rest)]
    if not is_multiplied(query, bias):
        fill = -(d + 2) % 8
        wider = [(*parts, parts[0].new_zeros(*parts[0].shape[:-1], fill)) for parts in wider]
        value = F.pad(value, (0, 2 + fill))
    out = attention(*(torch.cat(parts, -1) for parts in wider), value, bias, dropout_p, d**-0.5)[..., :d]
    return out if probe is None else out - probe


def mean_shift_attention_exported(
    query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """'channels' with a single channel, which is exact enough in float32. Runtimes of ONNX have no kernels for which
    heads would have to be padded, and an addition to all logits would cost them more."""
    ones, norm = torch.ones_like(query[..., :1]), -_half_square(key).to(key.dtype)
    wider = torch.cat((query, ones), -1), torch.cat((key, norm), -1)
    bias = None if bias is None else bias.to(query.dtype)
    out = F.scaled_dot_product_attention(*wider, value, bias, dropout_p, scale=query.shape[-1] ** -0.5)
    return out if probe is None else out - probe


def mean_shift_attention_bias(
    query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """Attention with the key norms added to a bias of the logits: less work where that matrix exists anyway, but the
    norms are rounded to its dtype."""
    key = key.contiguous()  # The backward pass of the norm would otherwise keep all projections in memory.
    norm = -_half_square(key).transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, heads, 1, M)
    bias = (norm if bias is None else bias + norm).to(query.dtype)
    out = attention(query, key, value, bias, dropout_p)
    return out if probe is None else out - probe


def _triton(
    query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    _check_triton(key, bias, dropout_p)
    from .triton import mean_shift_attention_triton

    dtype = autocast_dtype(value)
    return mean_shift_attention_triton(*(None if x is None else x.to(dtype) for x in (query, key, value, probe)))


def _check_triton(key: Tensor, bias: Tensor | None, dropout_p: float) -> None:
    """Check that backend 'triton' can be used.

    Raises:
        CannotServe: if it cannot.
    """
    check_triton(key, products=True)
    if bias is not None or dropout_p or key.shape[-1] > WIDEST:
        raise CannotServe(
            f"backend 'triton' takes neither a bias nor dropout, and heads of at most {WIDEST} channels: choose "
            "backend 'channels'"
        )


def _half_square(key: Tensor) -> Tensor:
    """|k|^2 / 2, (B, heads, M, 1), in at least float32."""
    return key.to(torch.promote_types(key.dtype, torch.float32)).square().sum(-1, keepdim=True) / 2


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': mean_shift_attention_reference,
    'channels': mean_shift_attention_channels,
    'exported': mean_shift_attention_exported,
    'bias': mean_shift_attention_bias,
    'triton': _triton,
}


def fastest(key: Tensor, bias: Tensor | None, dropout_p: float) -> str:
    """The backend that None stands for, of :func:`mean_shift_attention`."""
    if bias is None and not dropout_p and key.shape[-1] <= WIDEST and triton_multiplies(key):
        return 'triton'
    half = key.dtype in HALF
    if is_exporting() and not half:
        return 'exported'
    trains = is_transforming() or (torch.is_grad_enabled() and key.requires_grad)
    wide = half or (bias is None and (trains or key.device.type != 'cpu' or not FUSES_BIAS))
    return 'channels' if wide else 'bias'


def _check(query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None) -> None:
    if query.dim() != 4 or key.shape != value.shape or key.shape != (*query.shape[:2], key.shape[2], query.shape[3]):
        raise ValueError(
            f'query must be (B, heads, N, d), key and value (B, heads, M, d), not {tuple(query.shape)}, '
            f'{tuple(key.shape)} and {tuple(value.shape)}'
        )
    if probe is not None and probe.shape != query.shape:
        raise ValueError(f'probe must be of the shape of query, {tuple(query.shape)}, not {tuple(probe.shape)}')
    B, heads, N, _ = query.shape
    if bias is not None and (
        bias.dim() != 4
        or bias.shape[0] not in (1, B)
        or bias.shape[1] not in (1, heads)
        or bias.shape[2:] != (N, key.shape[2])
    ):
        raise ValueError(f'bias must be (1 or {B}, 1 or {heads}, {N}, {key.shape[2]}), not {tuple(bias.shape)}')
