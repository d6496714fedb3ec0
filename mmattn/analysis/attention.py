"""Attention weights of one query, read out of a backbone without changing it.

A hook keeps the input of each attention layer. A function per class of layers in ``READERS`` finds the weights from it.
The result of attention is linear in its values, so its weights are its gradient with respect to the values, while
queries and keys are held. Dynamic filters, which the values make themselves, are read from the layer.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import layers
from ..layers.depthwise_conv import ValueFilter
from ..layers.token_mixer import with_prefix
from ..layers.window import Ghost
from ..ops import shunted_attention
from ..ops.any_size import pad_to_multiple
from ..ops.heads import join_heads, split_heads
from ..ops.rotary import rotary_embed
from .features import blocks_of, openmmlab_classes, stride_of


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
        backbone: of mmattn, or one of :data:`mmattn.analysis.features.OTHERS`, in evaluation mode.
        image: (1, C, H, W), prepared for the backbone.
        x, y: the query, in pixels of the image: 0 <= x < W, 0 <= y < H.

    Raises:
        InputError: if it is another backbone.
    """
    found = []

    def read(stage: int, block: int, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() == 3:  # of OTHERS
            inputs = (inputs[0].unflatten(1, inputs[1]),)
        H, W = inputs[0].shape[1:3]
        stride = stride_of(image.shape[2:], (H, W), getattr(backbone, 'strides', ()))
        query = min(int(y / stride), H - 1), min(int(x / stride), W - 1)
        of_others = (READERS_OF_OTHERS[name] for name in openmmlab_classes(layer) if name in READERS_OF_OTHERS)
        reader = READERS.get(type(layer)) or next(of_others, None)
        prefix = dict(prefix=inputs[1]) if len(inputs) > 1 else {}
        weights = reader and reader(layer, inputs[0], *query, **prefix)
        found.append(LayerAttention(stage, block, type(layer).__name__, stride, query, weights))

    with ExitStack() as hooks:
        for stage, units in enumerate(blocks_of(backbone)):
            for block, unit in enumerate(units):
                if getattr(unit, 'attn', None) is not None:  # a bottleneck may have a convolution instead
                    hooks.enter_context(unit.attn.register_forward_pre_hook(partial(read, stage, block)))
        backbone(image)
    return found


def by_channel(attend: Callable[[Tensor], Tensor], value: Tensor, row: int, column: int) -> Tensor:
    """The weights (C, h, w) of a query, in each channel of the values (1, h, w, C) that ``attend`` sums."""
    with torch.enable_grad():
        value = value.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(attend(value)[0, row, column].sum(), value)
    return gradient[0].flatten(2).permute(2, 0, 1)


def _by_head(attend: Callable[[Tensor], Tensor], value: Tensor, heads: int, row: int, column: int) -> Tensor:
    """The means (heads, h, w) over the channels of each head."""
    return by_channel(attend, value, row, column).unflatten(0, (heads, -1)).mean(1)


def _projected(layer: nn.Module, x: Tensor, row: int, column: int, prefix: Tensor | None = None) -> list[Weights]:
    """Layers that project to values, queries and keys at once. If a ghost head gives each channel its own weights, the
    mean over the channels of a head."""
    heads, border = layer.num_heads, 0
    if isinstance(layer, layers.GhostHeadAttention):
        heads *= layer.multiple
    elif isinstance(layer, layers.ELSA):
        border = layer.dilation * (layer.kernel_size // 2)
    elif getattr(layer, 'area', 'window') == 'window':
        x = pad_to_multiple(x, layer.window_size, (1, 2))
    else:
        border = layer.side // 2
    x = F.pad(x, (0, 0, *[border] * 4))
    with input_as_values(layer, border):
        attend = layer.forward if prefix is None else lambda x: layer.forward(x, prefix)[0]
        weights = _by_head(attend, x, heads, row + border, column + border)
    return [Weights('', weights, top=-border, left=-border)]


@contextmanager
def input_as_values(layer: nn.Module, border: int = 0) -> Iterator[None]:
    """In this block, a layer weighs its input in place of its values, by queries and keys that are held and zero in a
    border."""

    def replace(_: nn.Module, inputs: tuple[Tensor], projected: Tensor) -> Tensor:
        (x,), projected = inputs, projected.detach()
        if border:
            inside = torch.ones_like(x[:, border:-border, border:-border, :1])
            projected = projected * F.pad(inside, (0, 0, *[border] * 4))
        if not isinstance(layer, layers.LocalAttention):  # the values come last
            return torch.cat((projected[..., : -x.shape[-1]], x), -1)
        return torch.cat((x, projected[..., x.shape[-1] :]), -1)

    names = ('qkv', 'proj') if isinstance(layer, layers.WindowAttention) else ('pre_proj', 'post_proj')
    project, back = (getattr(layer, name) for name in names)
    passed = back.register_forward_hook(lambda _, inputs, __: inputs[0])
    with passed, project.register_forward_hook(replace):
        yield


def _mean_shift(
    layer: layers.MeanShiftAttention, x: Tensor, row: int, column: int, prefix: Tensor | None = None
) -> list[Weights]:
    return [Weights('', _by_head(partial(_kernel_sum, layer, prefix=prefix), x, layer.num_heads, row, column))]


def _mean_shift_windows(layer: layers.MeanShiftWindowAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    x = pad_to_multiple(x, layer.window_size, (1, 2))

    def instead(attn: layers.MeanShiftAttention, inputs: tuple[Tensor], given: dict[str, object], _: Tensor) -> Tensor:
        return _kernel_sum(attn, *inputs, **given)

    with layer.attn.register_forward_hook(instead, with_kwargs=True):
        return [Weights('', _by_head(layer.forward, x, layer.num_heads, row, column))]


def _kernel_sum(
    layer: layers.MeanShiftAttention,
    x: Tensor,
    prefix: Tensor | None = None,
    bias: Tensor | None = None,
    ghost: Ghost = None,
) -> Tensor:
    """Equation 12 or 1 with the input (B, ..., C) in place of the values, which may share a matrix with the keys."""
    tokens, count = with_prefix(prefix, x), 0 if prefix is None else prefix.shape[1]
    projected = dict(zip(layer.matrices, layer.pre_proj(tokens.detach()).chunk(len(layer.matrices), -1)))
    query, key = (
        rotary_embed(projected[letter], count, x.shape, layer.num_heads, layer.rope) for letter in layer.sharing[:2]
    )
    q, k, v = (split_heads(each, layer.num_heads) for each in (query, key, tokens))
    out = layer.add_ghost(join_heads(layer.attend(q, k, v, None, bias, x.shape[1:-1])), tokens, count, x.shape, ghost)
    return out[:, count:].view(x.shape)


def _filter(layer: ValueFilter, x: Tensor, row: int, column: int) -> list[Weights]:
    """The filter at the query. Each channel counts as a head."""
    side = layer.kernel_size
    if isinstance(layer, layers.DepthwiseConv):
        kernel = layer.conv.weight
    elif isinstance(layer, layers.DynamicDepthwiseConv):
        kernel = layer.kernels(layer.pre_proj(x))
    else:
        spatial, channel = layer.kernels(layer.pre_proj(x))
        spatial = spatial[:, row, column]
        kernel = spatial * channel if layer.settings['combination'] == 'mul' else spatial + channel
    kernel = kernel.view(-1, side, side)
    return [Weights('', kernel, top=row - side // 2, left=column - side // 2)]


def _shunted(layer: layers.ShuntedAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Equation 2: each group of heads has keys of its own merging."""
    pairs = layer.keys_values(x)
    heads, found = layer.num_heads // len(pairs), []

    def attend(group: int, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = shunted_attention(q, [key], [value], heads)
        return out if layer.ghost1 is None else out + layer.ghost_head(group, value, x.shape)

    for group, (q, (key, value), cell) in enumerate(zip(layer.q(x).chunk(len(pairs), -1), pairs, layer.rates)):
        weights = _by_head(partial(attend, group, q, key), value, heads, row, column)
        found.append(Weights('', weights, cell, first_head=len(found) * heads))
    return found


def _global(layer: layers.GlobalSelfAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Equations 4 and 7. By default they have no softmax over the weights of a query: weights may be negative.

    Rows attend to the result of the columns. The parts are shown one by one.
    """
    query, value = layer._split(layer.query(x)), layer._split(layer.value(x))
    key = layer._split(layer.key(x)) if layer.content == 'axial' else None
    parts = {}
    if layer.content is True:
        parts['content'] = lambda value: layer._content(x, query, value)
    if layer.rel_col is not None:
        parts['column'] = lambda value: layer._along(1, query, key, value, layer.rel_col)
    if layer.rel_row is not None:
        parts['row'] = lambda value: layer._along(2, query, key, value, layer.rel_row)
    return [Weights(part, _by_head(attend, value, layer.num_heads, row, column)) for part, attend in parts.items()]


def _outlook(layer: layers.OutlookAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    return [Weights('', _by_head(partial(layer.weigh, x), x, layer.num_heads, row, column))]


def _neighbourhood(layer: layers.NeighbourhoodAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Padding of small maps takes part in attention, but not in the ghost head."""
    H, W = x.shape[1:3]
    side = layer.kernel_size * layer.dilation
    beyond = (0, 0, 0, max(side - W, 0), 0, max(side - H, 0))
    q, k, v = layer.qkv(F.pad(x, beyond)).unflatten(-1, (3, layer.num_heads, -1)).unbind(3)

    def attend(value: Tensor) -> Tensor:
        mixed = layer.attend(q, k, value.view_as(v)).flatten(-2)
        return mixed if layer.ghost is None else mixed + F.pad(layer.ghost(value[:, :H, :W]), beyond)

    return [Weights('', _by_head(attend, v.flatten(-2), layer.num_heads, row, column))]


def _plain(
    layer: layers.SelfAttention, x: Tensor, row: int, column: int, prefix: Tensor | None = None
) -> list[Weights]:
    """Prefix tokens have weights too, which are not shown: those of the map sum to less than 1."""
    q, k, v = layer.query_key_value(x, prefix)
    of_prefix, value = v.split((v.shape[1] - x.shape[1] * x.shape[2], x.shape[1] * x.shape[2]), 1)

    def attend(value: Tensor) -> Tensor:
        mixed = layer.attend(q, k, with_prefix(of_prefix, value))[:, of_prefix.shape[1] :].view(x.shape)
        return mixed if layer.ghost is None else mixed + layer.ghost(value)

    return [Weights('', _by_head(attend, value.view(x.shape), layer.num_heads, row, column))]


def _reduced(layer: layers.SpatialReductionAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    q, k, v = layer.query_key_value(x)
    weights = _by_head(lambda value: layer.attend(q, k, value), v, layer.num_heads, row, column)
    return [Weights('', weights, cell=layer.reduction)]


def _aggregated(layer: layers.AggregatedAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    """Neighbours, with the weights of the learnable tokens, which may be negative; then pooled tokens. Cells of the
    picture have r x r positions. Where r does not divide a side of the map, pools are longer, and the picture is off by
    less than a cell."""
    q, k, v, pooled_k, pooled_v = layer.query_key_value(x)
    near = _by_head(lambda value: layer.attend(q, k, value, pooled_k, pooled_v), v, layer.num_heads, row, column)
    far = _by_head(lambda value: layer.attend(q, k, v, pooled_k, value), pooled_v, layer.num_heads, row, column)
    return [Weights('neighbours', near), Weights('pooled', far, cell=layer.reduction)]


def _cosine(layer: layers.CosineAttention, x: Tensor, row: int, column: int) -> list[Weights]:
    q, k, v = layer.query_key_value(x)
    attend = lambda value: layer.attend(q, k, value).view(x.shape)
    return [Weights('', _by_head(attend, v, layer.num_heads, row, column))]


def _rank_augmented(
    layer: layers.RankAugmentedAttention, x: Tensor, row: int, column: int, prefix: Tensor | None = None
) -> list[Weights]:
    """Before the factor, and without the convolution of the values. Those of prefix tokens are not shown; positions can
    make weights negative."""
    q, k, v = layer.qkv(with_prefix(prefix, x)).chunk(3, -1)
    of_prefix, value = v.split((v.shape[1] - x.shape[1] * x.shape[2], x.shape[1] * x.shape[2]), 1)

    def attend(value: Tensor) -> Tensor:
        return layer.attend(q, k, with_prefix(of_prefix, value), x.shape)[:, of_prefix.shape[1] :].view(x.shape)

    return [Weights('', _by_head(attend, value.view(x.shape), layer.num_heads, row, column))]


def _openmmlab_windows(layer: nn.Module, x: Tensor, row: int, column: int) -> list[Weights]:
    """Of OpenMMLab's Swin Transformers: the input takes the place of the values, by queries and keys that are held."""
    msa, x = layer.w_msa, pad_to_multiple(x, layer.window_size, (1, 2))

    def replace(_: nn.Module, inputs: tuple[Tensor], projected: Tensor) -> Tensor:
        return torch.cat((projected[..., : -inputs[0].shape[-1]].detach(), *inputs), -1)

    def attend(value: Tensor) -> Tensor:
        return layer.forward(value.flatten(1, 2), value.shape[1:3]).view_as(value)

    passed = msa.proj.register_forward_hook(lambda _, inputs, __: inputs[0])
    with passed, msa.qkv.register_forward_hook(replace):
        return [Weights('', _by_head(attend, x, msa.num_heads, row, column))]


def _openmmlab_reduced(layer: nn.Module, x: Tensor, row: int, column: int) -> list[Weights]:
    """Of OpenMMLab's PVT, PVTv2 and MiT: keys are the input, or what a convolution and a norm make of it."""
    keys = x
    if layer.sr_ratio > 1:
        keys = layer.norm(layer.sr(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
    tokens = keys.flatten(1, 2).transpose(0, 1)
    weights = layer.attn(x[:, row, column][None], tokens, tokens, average_attn_weights=False)[1]
    return [Weights('', weights[0, :, 0].unflatten(-1, keys.shape[1:3]), cell=layer.sr_ratio)]


#: name of a class of OpenMMLab's attention layers -> function as in ``READERS``
READERS_OF_OTHERS = dict(
    ShiftWindowMSA=_openmmlab_windows,
    SpatialReductionAttention=_openmmlab_reduced,
    EfficientMultiheadAttention=_openmmlab_reduced,
)
#: class of layers -> function of the layer, its input (1, H, W, C), and row and column of the query
READERS: dict[type[nn.Module], Callable[[nn.Module, Tensor, int, int], list[Weights]]] = {
    layers.AggregatedAttention: _aggregated,
    layers.CosineAttention: _cosine,
    layers.ELSA: _projected,
    layers.DecoupledDynamicFilter: _filter,
    layers.DepthwiseConv: _filter,
    layers.DynamicDepthwiseConv: _filter,
    layers.EnhancedAttention: _plain,
    layers.GhostHeadAttention: _projected,
    layers.GlobalSelfAttention: _global,
    layers.LocalAttention: _projected,
    layers.MeanShiftAttention: _mean_shift,
    layers.MeanShiftWindowAttention: _mean_shift_windows,
    layers.NeighbourhoodAttention: _neighbourhood,
    layers.OutlookAttention: _outlook,
    layers.RankAugmentedAttention: _rank_augmented,
    layers.SelfAttention: _plain,
    layers.ShuntedAttention: _shunted,
    layers.SpatialReductionAttention: _reduced,
    layers.WindowAttention: _projected,
}
