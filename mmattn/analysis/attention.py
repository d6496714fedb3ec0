"""Attention weights of one query, read out of a backbone without changing it.

A hook keeps the input of each attention layer. A function per class of layers in ``READERS`` computes the weights again
from that input and the layer's own projections, by the equations of the papers.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import layers
from ..layers.any_size import pad_to_multiple
from ..layers.dynamic_filters import ValueFilter, filter_norm
from ..layers.shunted import TokenPooling
from ..layers.window import Windows, relative_bias, shift_mask
from ..ops.global_self_attention import fit_table
from .features import blocks_of, removing, stride_of


class Weights(NamedTuple):
    """Weights that a query gives to the positions of a map, by some heads of a layer.

    Weight (i, j) is of ``cell`` x ``cell`` positions from row ``top + i * cell``, column ``left + j * cell`` on.
    They may lie outside the map: in the padding of windows, of merged tokens or of neighbourhoods.
    """

    part: str  #: of the attention: 'content', 'row' ...; '' if there is one only
    values: Tensor  #: (heads, h, w)
    cell: int = 1
    top: int = 0
    left: int = 0
    first_head: int = 0


class LayerAttention(NamedTuple):
    """The attention of a query in a layer."""

    stage: int  #: counted from 0, like the blocks of a stage
    block: int
    layer: str  #: class of the layer
    stride: int  #: of the layer's map, in pixels of the image
    query: tuple[int, int]  #: row and column on the map
    weights: list[Weights] | None  #: None if no reader is known for the layer


@torch.no_grad()
def query_attention(backbone: nn.Module, image: Tensor, x: float, y: float) -> list[LayerAttention]:
    """The attention of one query in all attention layers of a backbone, in the order of the forward pass.

    Args:
        backbone: of mmattn, in evaluation mode.
        image: (1, C, H, W), prepared for the backbone.
        x, y: the query, in pixels of the image: 0 <= x < W, 0 <= y < H.

    Raises:
        InputError: if it is no backbone of mmattn.
    """
    found = []

    def read(stage: int, block: int, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        H, W = inputs[0].shape[1:3]
        stride = stride_of(image.shape[2:], (H, W))
        query = min(int(y / stride), H - 1), min(int(x / stride), W - 1)
        reader = READERS.get(type(layer))
        weights = reader and reader(layer, inputs[0], *query)
        found.append(LayerAttention(stage, block, type(layer).__name__, stride, query, weights))

    hooks = [
        unit.attn.register_forward_pre_hook(partial(read, stage, block))
        for stage, units in enumerate(blocks_of(backbone))
        for block, unit in enumerate(units)
        if getattr(unit, 'attn', None) is not None  # a bottleneck may have a convolution instead
    ]
    with removing(hooks):
        backbone(image)
    return found


def elsa_kernel(layer: layers.ELSA, x: Tensor, row: int, column: int) -> Tensor:
    """Equations 7 and 8: the weights of a query in each channel. x: (1, H, W, C) -> (C, k, k)."""
    q, k, _ = layer.pre_proj(x).split((layer.dim_qk, layer.dim_qk, layer.dim), dim=-1)
    logits = layer._logits(q * k)[0, row, column]
    side = math.isqrt(logits.shape[1])
    weights = logits.softmax(-1).repeat_interleave(layer.dim // layer.num_heads, 0).view(-1, side, side)
    mul, add = layer._ghost_matrices()
    weights = weights if mul is None else weights * mul
    return weights if add is None else weights + add


def _elsa(layer: layers.ELSA, x: Tensor, row: int, column: int) -> list[Weights]:
    """The mean over the channels of each head, because the ghost head gives each channel its own weights."""
    return [_neighbours(elsa_kernel(layer, x, row, column), layer.num_heads, layer.dilation, row, column)]


def _neighbours(kernel: Tensor, heads: int, dilation: int, row: int, column: int) -> Weights:
    """The means (C, k, k) -> (heads, k, k) of the channels of each head, around the query."""
    kernel = kernel.unflatten(0, (heads, -1)).mean(1)
    side = dilation * (kernel.shape[-1] - 1) + 1
    spread = kernel.new_zeros(heads, side, side)
    spread[:, ::dilation, ::dilation] = kernel
    return Weights('', spread, top=row - side // 2, left=column - side // 2)


def _windows(layer: Windows, x: Tensor, row: int, column: int) -> list[Weights]:
    """The weights within the query's window, on the padded map."""
    w = layer.window_size
    x = pad_to_multiple(x, w, (1, 2))
    H, W = x.shape[1:3]
    shifts = layer._shift(H // w, x.device), layer._shift(W // w, x.device)
    row, column = (row - shifts[0]) % H, (column - shifts[1]) % W
    top, left = row // w * w, column // w * w
    tokens = layer._moved(x, shifts, -1)[:, top : top + w, left : left + w].flatten(1, 2)
    index = row % w * w + column % w
    mask = shift_mask(H // w, W // w, w, shifts, x.device)[top // w * (W // w) + left // w]
    if isinstance(layer, layers.LocalAttention):
        inside = _by_gradient(layer, index, lambda: layer.attend_masked(tokens, mask[None, None]))
    else:
        bias = relative_bias(layer.rb, w)[:, index] + mask[index]
        inside = _pairs(getattr(layer, 'attn', layer), tokens[0], index, bias)
    weights = x.new_zeros(layer.num_heads, H, W)
    weights[:, top : top + w, left : left + w] = inside.unflatten(1, (w, w))
    return [Weights('', weights.roll(shifts, (1, 2)))]


def _local(layer: layers.LocalAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Equation 4, in windows or among neighbours."""
    if layer.area == 'window':
        return _windows(layer, x, row, column)
    weights = _by_gradient(layer, row * x.shape[2] + column, lambda: layer(x))
    return [Weights('', weights.unflatten(1, x.shape[1:3]))]


def _by_gradient(layer: layers.LocalAttention, index: int, run: Callable[[], Tensor]) -> Tensor:
    """The weights (heads, N) as the gradient of the sum over the values with respect to the values.

    The layer has many forms, but the sum is linear in the values in all of them.
    """
    kept = []

    def replace(_: nn.Module, __: tuple, projected: Tensor) -> Tensor:
        value, rest = projected.detach().tensor_split((layer.post_proj.in_features,), -1)
        kept.append(value.requires_grad_())
        return torch.cat((value, rest), -1)

    hooks = [layer.pre_proj.register_forward_hook(replace)]
    hooks.append(layer.post_proj.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0])))
    with removing(hooks), torch.enable_grad():
        run()
        value, out = kept
        (gradient,) = torch.autograd.grad(out.flatten(0, -2)[index].sum(), value)
    return gradient.flatten(0, -2).unflatten(1, (layer.num_heads, -1)).mean(2).t()


def _filter(layer: ValueFilter, x: Tensor, row: int, column: int) -> list[Weights]:
    """The filter at the query. Each channel counts as a head."""
    value = layer.pre_proj(x)
    mean, side = value.mean((1, 2)), layer.kernel_size
    if isinstance(layer, layers.DepthwiseConv):
        kernel = layer.conv.weight.flatten(1)
    elif isinstance(layer, layers.DynamicDepthwiseConv):
        reduced = layer.norm(layer.reduce(mean)[..., None, None]).flatten(1).relu()
        kernel = layer.expand(reduced).unflatten(1, (-1, side**2))[0]
    else:
        channel = filter_norm(layer.expand(layer.reduce(mean).relu()).unflatten(1, layer.scale.shape))[0] * layer.scale
        spatial = filter_norm(layer.spatial(value[0, row, column])) * (2**0.5 / side)
        kernel = spatial * channel if layer.settings['combination'] == 'mul' else spatial + channel
    return [_neighbours(kernel.unflatten(1, (side, side)), len(kernel), 1, row, column)]


def _ghost(layer: layers.GhostHeadAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    H, W = x.shape[1:3]
    q, k, _ = layer.pre_proj(x).flatten(1, 2).chunk(3, -1)
    return [Weights('', layer.weights(q, k, H, W)[0, :, row * W + column].unflatten(1, (H, W)))]


def _mean_shift(layer: layers.MeanShiftAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    return [Weights('', _pairs(layer, x[0].flatten(0, 1), row * x.shape[2] + column).unflatten(1, x.shape[1:3]))]


def _pairs(layer: nn.Module, tokens: Tensor, index: int, bias: Tensor | float = 0.0) -> Tensor:
    """Softmax attention of one of the tokens (N, C) to all of them; bias of the logits (heads, N) -> (heads, N).

    Equation 12's Gaussian kernel of mean-shift attention, or the product of equation 1.
    """
    projected = layer.pre_proj(tokens)
    if isinstance(layer, layers.MeanShiftAttention):
        projected = dict(zip(layer.matrices, projected.chunk(len(layer.matrices), -1)))
        q, k = (projected[letter] for letter in layer.sharing[:2])
    else:
        _, q, k = projected.chunk(3, -1)
    q, k = q[index].view(layer.num_heads, 1, -1), k.unflatten(-1, (layer.num_heads, -1)).transpose(0, 1)
    if getattr(layer, 'attention', 'plain') == 'plain':
        logits = (q * k).sum(-1)
    else:
        logits = -(k - q).square().sum(-1) / 2
    return (logits / math.sqrt(q.shape[-1]) + bias).softmax(-1)


def _shunted(
    layer: layers.ShuntedAttention | layers.EnhancedAttention, x: Tensor, row: int, column: int
) -> list[Weights]:
    """Equation 2: each group of heads has keys of its own merging."""
    if isinstance(layer, layers.EnhancedAttention):
        keys, cells = [layer.kv(x).chunk(2, -1)[0]], [1]
    else:
        keys, _ = zip(*layer.keys_values(x))
        merges = [getattr(layer, f'sr{group + 1}') for group in range(len(keys))]
        cells = [merge.reduction if isinstance(merge, TokenPooling) else merge.stride[0] for merge in merges]
    queries = layer.q(x[0, row, column]).unflatten(0, (layer.num_heads, -1))
    heads = layer.num_heads // len(keys)
    found = []
    for group, (key, cell, q) in enumerate(zip(keys, cells, queries.split(heads))):
        logits = torch.einsum('nd,hwnd->nhw', q, key[0].unflatten(-1, (heads, -1))) / math.sqrt(q.shape[1])
        weights = logits.flatten(1).softmax(1).view_as(logits)
        found.append(Weights('', weights, cell, first_head=group * heads))
    return found


def _global(layer: layers.GlobalSelfAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Equations 4 and 7. By default they have no softmax over the weights of a query: weights may be negative.

    Rows attend to the result of the columns. The parts are shown one by one.
    """
    query = layer._split(layer.query(x))[0, row, column]
    key = None if layer.key is None else layer._split(layer.key(x))[0]
    found = []
    if layer.content is True:
        q = query.softmax(-1) if layer.softmax_queries else query
        weights = key.flatten(0, 1).softmax(0).view_as(key)
        found.append(Weights('content', torch.einsum('nk,hwnk->nhw', q, weights)))

    def along(table: Tensor, length: int, place: int, keys: Tensor | None) -> Tensor:
        L = len(table) // 2 + 1
        weights = query @ fit_table(table, length, layer.beyond)[length - 1 - place :][:length].t()
        if layer.content == 'axial':
            weights = weights + torch.einsum('nk,ink->ni', query, keys)
        if layer.beyond == 'mask':
            far = (torch.arange(length, device=x.device) - place).abs() >= L
            weights = weights.masked_fill(far, -math.inf if layer.axial_softmax else 0)
        return weights.softmax(-1) if layer.axial_softmax else weights

    if layer.rel_col is not None:
        weights = along(layer.rel_col, x.shape[1], row, None if key is None else key[:, column])
        found.append(Weights('column', weights[:, :, None], left=column))
    if layer.rel_row is not None:
        weights = along(layer.rel_row, x.shape[2], column, None if key is None else key[row])
        found.append(Weights('row', weights[:, None], top=row))
    return found


#: class of layers -> function of the layer, its input (1, H, W, C), and row and column of the query
READERS: dict[type[nn.Module], Callable[[nn.Module, Tensor, int, int], list[Weights]]] = {
    layers.ELSA: _elsa,
    layers.DecoupledDynamicFilter: _filter,
    layers.DepthwiseConv: _filter,
    layers.DynamicDepthwiseConv: _filter,
    layers.EnhancedAttention: _shunted,
    layers.GhostHeadAttention: _ghost,
    layers.GlobalSelfAttention: _global,
    layers.LocalAttention: _local,
    layers.MeanShiftAttention: _mean_shift,
    layers.MeanShiftWindowAttention: _windows,
    layers.ShuntedAttention: _shunted,
    layers.WindowAttention: _windows,
}
