"""How token mixers start from the weights of another attention.

Each function makes a token mixer's own tensors from those of a plain attention, as a ViT, Swin Transformer or NAT has
it, or of PVTv2's attention. A token mixer has it as its method ``warm_start`` or ``from_pvt``. Tensors of shunted
attention become those of PVTv2's first, see :func:`pvt_of_shunted`.

The arguments are the token mixer, the state dict of a whole model, from which the tensors that are taken are removed,
and the prefix of the names of the attention's tensors. The result has the token mixer's names; what is not in it keeps
its initial values. The errors are a KeyError, naming a tensor that should be in the state dict, and a CheckpointError,
if a tensor has another shape or numbers of heads do not go together.

Three functions instead rename a token mixer's own tensors, as a release or an earlier checkpoint has them, in the state
dict. A token mixer has them as its method ``rename_tensors``.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..weights import take, take_out

#: by how much a start of mean-shift attention divides keys and multiplies queries
SMALLER_KEYS = 8.0
#: Swin's biases of relative positions, (positions, heads), by query minus key
TABLE = 'relative_position_bias_table'


def start_token_mixers(
    state_dict: dict[str, Tensor], starts: Mapping[str, Callable[[dict[str, Tensor], str], dict[str, Tensor]] | None]
) -> list[str]:
    """Replace the tensors of another attention in a whole model by those that token mixers make of them.

    Args:
        state_dict: of the model.
        starts: from the prefix of the names of an attention's tensors to the method ``warm_start`` or ``from_pvt`` of
            the token mixer in its place; None for one that keeps its initial values.

    Returns:
        the names of the tensors that have no place.
    """
    made, dropped = {}, []
    for prefix, start in starts.items():
        own = start(state_dict, prefix) if start else {}
        made.update((prefix + name, value) for name, value in own.items())
        dropped += take_out(state_dict, prefix)
    state_dict.update(made)
    return dropped


def plain_before(
    attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, changed: Callable[[Tensor], Tensor] = lambda rows: rows
) -> None:
    """Rename, in place, the tensors of plain attention that was written before, and change those of the first one."""
    for kind in ('weight', 'bias'):
        _rename(state_dict, f'{prefix}pre_proj.{kind}', f'{prefix}qkv.{kind}', changed)
        _rename(state_dict, f'{prefix}post_proj.{kind}', f'{prefix}proj.{kind}')


def windows_of_elsa(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Rename, in place, the tensors of windows in ELSA-Swin's release, and in what was written before: the table is by
    key minus query, and window attention projects to values first."""
    _rename(state_dict, f'{prefix}rb', prefix + TABLE, lambda table: table.flip(1).t() if table.dim() == 2 else table)
    if hasattr(attn, 'qkv'):
        plain_before(attn, state_dict, prefix, lambda x: x.roll(-(len(x) // 3), 0) if x.dim() else x)


def enhanced_of_release(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Join, in place, the projections to query and to key and value, which Shunted Transformer's release has apart."""
    for kind in ('weight', 'bias'):
        names, new = [f'{prefix}{part}.{kind}' for part in ('q', 'kv')], f'{prefix}qkv.{kind}'
        parts = [state_dict[name] for name in names if name in state_dict and new not in state_dict]
        if len(parts) == 2 and all(part.dim() for part in parts) and parts[0].shape[1:] == parts[1].shape[1:]:
            take_out(state_dict, *names)
            state_dict[new] = torch.cat(parts)


def _rename(
    state_dict: dict[str, Tensor], old: str, new: str, changed: Callable[[Tensor], Tensor] = lambda value: value
) -> None:
    """Put a tensor under another name, unless that is taken: then loading names the one that has no place."""
    if old in state_dict and new not in state_dict:
        state_dict[new] = changed(state_dict.pop(old))


def take_linear(
    state_dict: dict[str, Tensor], name: str, rows: int, columns: int, own: str | None = None, bias: bool = True
) -> dict[str, Tensor]:
    """Remove weight and bias of a linear layer from a state dict; returns them under the name ``own``, or the last part
    of ``name``."""
    own = name.rpartition('.')[2] if own is None else own
    start = {f'{own}.weight': take(state_dict, f'{name}.weight', rows, columns)}
    return start | {f'{own}.bias': take(state_dict, f'{name}.bias', rows)} if bias else start


def mean_shift_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    r"""From plain attention, as timm and Swin have it.

    The probe starts at zero. The Gaussian kernel differs from a dot product by the term :math:`\|k\|^2`. So its queries
    start as those of the plain attention times 8 and its keys divided by 8: the products stay, and the term is 64 times
    smaller. Queries or keys that share a matrix start as they are.

    A matrix that several projections share starts as the first of query, key, value and weight among them. Biases are
    taken if this attention has biases. Grouped projections start as the nearest ones to the dense projections, see
    :meth:`mmattn.layers.GroupedLinear.nearest`.
    """
    start = {}
    dim = attn.dim
    back = take(state_dict, f'{prefix}proj.weight', dim, dim)
    if attn.post_proj is not None:
        start['post_proj.weight'] = back
        if attn.post_proj.bias is not None and f'{prefix}proj.bias' in state_dict:
            start['post_proj.bias'] = state_dict.pop(f'{prefix}proj.bias')
    # If a letter occurs twice, the dict keeps its last value: query before key before value before weight.
    letters = attn.sharing[-1] + attn.sharing[2::-1]
    q, k, v = take(state_dict, f'{prefix}qkv.weight', 3 * dim, dim).chunk(3)
    alone = all(attn.sharing.count(letter) == 1 for letter in attn.sharing[:2])
    factor = SMALLER_KEYS if alone and attn.form != 'plain' else 1.0
    q, k = q * factor, k / factor
    first = dict(zip(letters, (back.t(), v, k, q)))
    dense = torch.cat([first.get(letter, torch.zeros_like(v)) for letter in attn.matrices])
    start['pre_proj.weight'] = attn.pre_proj.nearest(dense) if hasattr(attn.pre_proj, 'nearest') else dense
    if attn.pre_proj.bias is not None and f'{prefix}qkv.bias' in state_dict:
        q, k, v = take(state_dict, f'{prefix}qkv.bias', 3 * dim).chunk(3)
        first = dict(zip(letters, (torch.zeros_like(v), v, k / factor, q * factor)))
        start['pre_proj.bias'] = torch.cat([first.get(letter, torch.zeros_like(v)) for letter in attn.matrices])
    return start


def mean_shift_window_from_swin(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """From Swin's attention."""
    start = {f'attn.{name}': value for name, value in attn.attn.warm_start(state_dict, prefix).items()}
    return {**start, TABLE: table_of_swin(attn, state_dict, prefix)}


def window_from_swin(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """From Swin's attention: all but a ghost head, which starts at zero."""
    dim, start = attn.proj.in_features, {TABLE: table_of_swin(attn, state_dict, prefix)}
    start |= take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim)
    return start | take_linear(state_dict, f'{prefix}proj', dim, dim)


def table_of_swin(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> Tensor:
    """The table of Swin's attention, of windows of any size; zero for a ViT, whose attention has none."""
    name, shape = prefix + TABLE, ((2 * attn.window_size - 1) ** 2, attn.num_heads)
    if name not in state_dict:
        return torch.zeros(shape)
    if not is_table(state_dict[name].shape[::-1], shape[::-1]):
        take(state_dict, name, *shape)  # raises the error
    return state_dict.pop(name)


def elsa_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The projections to value and back from plain attention. Query and key have another width here."""
    dim, start = attn.dim, take_linear(state_dict, f'{prefix}proj', attn.dim, attn.dim, 'post_proj')
    given = take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim, 'pre_proj', attn.pre_proj.bias is not None)
    for name, value in given.items():
        own = attn.get_parameter(name).detach()[: 2 * attn.dim_qk]
        start[name] = torch.cat((own, value[2 * dim :].view(dim, *own.shape[1:]).to(own)))
    return start


def neighbourhood_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The projections from plain attention, and the table from NAT's or Swin's attention, if there is one.

    From Swin's it has the same biases, in steps of the dilation. Neighbours that are farther away than Swin's windows
    reach start with the bias of the farthest.
    """
    start = take_linear(state_dict, f'{prefix}proj', attn.dim, attn.dim)
    start |= take_linear(state_dict, f'{prefix}qkv', 3 * attn.dim, attn.dim, bias=attn.qkv.bias is not None)
    if attn.rpb is not None and f'{prefix}rpb' in state_dict:
        start['rpb'] = take(state_dict, f'{prefix}rpb', *attn.rpb.shape)
    table = state_dict.pop(prefix + TABLE, None)
    if table is not None and attn.rpb is not None:
        start['rpb'] = centre(by_offset(table, prefix + TABLE, attn.num_heads), attn.kernel_size - 1)
    return start


def by_offset(table: Tensor, name: str, num_heads: int) -> Tensor:
    """Swin's table as (heads, 2w - 1, 2w - 1), by neighbour minus query, as NAT's is."""
    if not is_table(table.shape[::-1], (num_heads, 0)):
        raise CheckpointError(
            f'a tensor is of another shape: {name} {tuple(table.shape)} instead of ((2w - 1) ** 2, {num_heads})'
        )
    side = math.isqrt(len(table))
    return table.t().flip(1).unflatten(1, (side, side))  # Swin's table is indexed by query minus key.


def centre(table: Tensor, reach: int) -> Tensor:
    """The biases (heads, 2 * reach + 1, 2 * reach + 1) of a table (heads, a, a) of any odd a; beyond it, those of its
    border."""
    half = table.shape[-1] // 2
    steps = torch.arange(-reach, reach + 1).clamp(-half, half) + half
    return table[:, steps[:, None], steps]


def cosine_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """From plain attention, or that of windows or neighbourhoods, whose biases by position are left out. See
    :func:`by_cosine`."""
    norm = norm_before(state_dict, prefix, attn.proj.in_features)
    start = by_cosine(attn, projections_of_plain(attn, state_dict, prefix), norm, norm, attn.side**2)
    return joined(start, 'qkv', 'qkv')


def cosine_from_pvt(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, num_heads: int) -> dict[str, Tensor]:
    """From PVTv2's attention at r = 1, of ``num_heads`` heads, see :func:`by_cosine`."""
    dim = attn.proj.in_features
    norm = norm_before(state_dict, prefix, dim)
    given = projections_of_pvt(state_dict, prefix, dim, attn.num_heads, num_heads)
    return joined(by_cosine(attn, given, norm, norm, attn.side**2), 'qkv', 'qkv')


def aggregated_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """From plain attention, or that of windows or neighbourhoods, see :func:`aggregated`.

    If that has a table of biases by position, as Swin's and NAT's, those of the neighbours start as its centre, minus
    the mean of the table: pooled tokens have none.
    """
    norm = norm_before(state_dict, prefix, attn.proj.in_features)
    given, near = projections_of_plain(attn, state_dict, prefix), None
    table, name = state_dict.get(f'{prefix}rpb'), f'{prefix}rpb'
    if table is not None:
        side = max(table.shape[-1:] + (1,)) // 2 * 2 + 1
        table = take(state_dict, name, attn.num_heads, side, side)
    if prefix + TABLE in state_dict:
        table = by_offset(state_dict.pop(prefix + TABLE), prefix + TABLE, attn.num_heads)
    if table is not None:
        reach = math.isqrt(attn.relative_pos_bias_local.shape[1]) // 2
        near = centre(table, reach).flatten(1) - table.mean((1, 2))[:, None]
    return aggregated(attn, given | means_of_pools(norm), norm, norm, near)


def aggregated_from_pvt(
    attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, num_heads: int
) -> dict[str, Tensor]:
    """From PVTv2's attention, of ``num_heads`` heads, see :func:`aggregated`.

    The linear layer before pooling starts as the sum of PVTv2's filters, and the norm as PVTv2's. So on a map that
    repeats each token r x r times, the pooled tokens are PVTv2's. At r = 1, they are means.
    """
    dim = attn.proj.in_features
    norm = of_keys = norm_before(state_dict, prefix, dim)
    given = projections_of_pvt(state_dict, prefix, dim, attn.num_heads, num_heads)
    if not any(name.startswith(f'{prefix}sr.') for name in state_dict):
        return aggregated(attn, given | means_of_pools(norm), norm, of_keys)
    name = f'{prefix}sr.weight'
    given['sr.weight'] = take(state_dict, name, dim, dim, *2 * state_dict[name].shape[-1:]).sum((2, 3))
    given |= {key: take(state_dict, prefix + key, dim) for key in ('sr.bias', 'norm.weight', 'norm.bias')}
    return aggregated(attn, given, norm, (given['norm.weight'], given['norm.bias']))


#: weight and bias of a norm, (C) both
Norm = tuple[Tensor, Tensor]


def norm_before(state_dict: dict[str, Tensor], prefix: str, dim: int) -> Norm:
    """The norm of a block before its attention, which stays in the state dict; the identity if there is none."""
    name = f'{prefix.removesuffix("attn.")}norm1.'
    if f'{name}weight' not in state_dict:
        return torch.ones(dim), torch.zeros(dim)
    return tuple(take({key: state_dict[key]}, key, dim) for key in (f'{name}weight', f'{name}bias'))


def projections_of_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights (C, C) and biases (C) of ``q``, ``k``, ``v`` and ``proj`` of plain attention. A bias that it lacks is
    zero."""
    dim = attn.proj.in_features
    start = take_linear(state_dict, f'{prefix}proj', dim, dim)
    given = take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim, '', bias=f'{prefix}qkv.bias' in state_dict)
    given.setdefault('.bias', torch.zeros(3 * dim).to(start['proj.bias']))
    return start | {f'{part}{kind}': x for kind, all in given.items() for part, x in zip('qkv', all.chunk(3))}


def joined(start: dict[str, Tensor], parts: str, name: str) -> dict[str, Tensor]:
    """Several projections as one."""
    for kind in ('weight', 'bias'):
        start[f'{name}.{kind}'] = torch.cat([start.pop(f'{part}.{kind}') for part in parts])
    return start


def means_of_pools(norm: Norm) -> dict[str, Tensor]:
    """Layers of :class:`mmattn.layers.AggregatedAttention` that make a pooled token the mean of its tokens, normed to
    the mean and deviation that the channels of a token have after ``norm``."""
    scale, offset = norm
    mean = offset.mean()
    deviation = ((scale.square() + offset.square()).mean() - mean.square()).clamp(min=0).sqrt()
    return {
        'sr.weight': torch.eye(len(scale)).to(scale),
        'sr.bias': torch.zeros_like(offset),
        'norm.weight': deviation.expand_as(scale),
        'norm.bias': mean.expand_as(offset),
    }


def aggregated(
    attn: nn.Module, given: dict[str, Tensor], norm: Norm, of_keys: Norm, near: Tensor | None = None
) -> dict[str, Tensor]:
    """A start of :class:`mmattn.layers.AggregatedAttention`, see :func:`by_cosine`.

    The bias of the linear layer before pooling is raised by the same number in all channels, until GELU leaves nearly
    all values as they are; the norm after pooling removes it. A pooled token stands for r x r tokens. So neighbours
    start with a bias of -2 log r, as if each token was a key once. Learnable tokens start at zero.

    Args:
        given: weights and biases of ``q``, ``k``, ``v``, ``proj``, ``sr``, as a matrix, and ``norm``.
        norm: before attention.
        of_keys: norm of the tokens that the keys of the source are projected from.
        near: biases of the neighbours, (heads, k * k).
    """
    local, side = attn.relative_pos_bias_local, max(attn.side // attn.reduction, 1)
    start = by_cosine(attn, given, norm, of_keys, local.shape[1] + side**2)
    (scale, offset), weight = norm, start['sr.weight']
    mean, deviation = weight @ offset + start['sr.bias'], (weight * scale).norm(dim=1)
    lift = (3 * deviation - mean).max() + 4  # Three deviations below its mean, a value is 4, and its GELU is 3.9999.
    start |= {'sr.weight': weight[..., None, None], 'sr.bias': start['sr.bias'] + lift}
    start |= {name: torch.zeros_like(getattr(attn, name)) for name in ('learnable_tokens', 'learnable_bias')}
    near = torch.zeros_like(local) if near is None else near
    start['relative_pos_bias_local'] = near - 2 * math.log(attn.reduction)
    return joined(start, 'kv', 'kv')


def by_cosine(attn: nn.Module, given: dict[str, Tensor], norm: Norm, of_keys: Norm, count: int) -> dict[str, Tensor]:
    """A start of cosine attention from the projections ``q``, ``k``, ``v`` and ``proj`` of one by products.

    A product is the cosine times the lengths of query and key. The cosine's factor, for ``count`` keys, starts as the
    mean of this over tokens whose channels are uncorrelated: where all queries and keys of a head have these lengths,
    attention is that of the source. The query embedding and the bias by position start at zero.

    Args:
        norm, of_keys: norms of the tokens that queries and keys are projected from.
    """
    squares = torch.ones(attn.num_heads, dtype=torch.float64)
    for part, (scale, offset) in dict(q=norm, k=of_keys).items():
        weight, bias = (given[f'{part}.{kind}'].double() for kind in ('weight', 'bias'))
        square = (weight * scale).square().sum(1) + (weight @ offset.double() + bias).square()
        squares *= square.unflatten(0, (attn.num_heads, -1)).sum(1)
    width = attn.query_embedding.shape[-1]
    factor = ((squares / width).sqrt() / math.log(count)).clamp(min=1e-6).to(given['q.weight'])
    zeros = {name: torch.zeros_like(attn.get_parameter(name)) for name in ('cpb_fc2.weight', 'cpb_fc2.bias')}
    zeros['query_embedding'] = torch.zeros_like(attn.query_embedding)
    return given | zeros | {'temperature': (factor + (-torch.expm1(-factor)).log())[:, None, None]}


def rank_augmented_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The projections from plain attention. The factor starts at 1, and a convolution of the values at 0."""
    return without_factor(attn, projections_of_plain(attn, state_dict, prefix))


def rank_augmented_from_pvt(
    attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, num_heads: int
) -> dict[str, Tensor]:
    """The same from PVTv2's attention, of ``num_heads`` heads, see :func:`projections_of_pvt`. Tokens are not merged
    here."""
    dim = attn.proj.in_features
    return without_factor(attn, projections_of_pvt(state_dict, prefix, dim, attn.num_heads, num_heads))


def without_factor(attn: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of rank-augmented attention whose factor and convolution have no effect."""
    start, like = joined(given, 'qkv', 'qkv'), given['proj.weight']
    start |= {'phi.weight': torch.zeros_like(like), 'phi.bias': torch.ones_like(like[0])}
    if attn.local_conv is not None:
        start |= {f'local_conv.{name}': torch.zeros_like(x) for name, x in attn.local_conv.state_dict().items()}
    return start


def shunted_from_plain(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """From plain attention, taken as PVTv2's that merges tokens to their mean and norms them. On a map of normed tokens
    that repeats each of them r x r times, this gives the same result."""
    dim, rate = attn.q.in_features, math.lcm(*attn.rates)
    given = {'norm.weight': torch.ones(dim), 'norm.bias': torch.zeros(dim), 'sr.bias': torch.zeros(dim)}
    given['sr.weight'] = torch.eye(dim)[..., None, None].repeat(1, 1, rate, rate) / rate**2
    projections = take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim)
    for kind in ('weight', 'bias'):
        given[f'q.{kind}'], given[f'kv.{kind}'] = projections[f'qkv.{kind}'].split((dim, 2 * dim))
    given |= take_linear(state_dict, f'{prefix}proj', dim, dim)
    given = {name: value.to(given['q.weight']) for name, value in given.items()}
    return shunted_from_pvt(attn, given, '', attn.num_heads)


def shunted_from_pvt(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, num_heads: int) -> dict[str, Tensor]:
    """From PVTv2's attention, of ``num_heads`` heads, see :func:`projections_of_pvt`.

    Each group takes the keys and values of its heads. At PVTv2's rate it takes the filters as they are. At a smaller
    rate s, which must divide PVTv2's, its filters are the sum of the s x s blocks of PVTv2's. On a map that repeats
    itself every s tokens, this gives the same result. Convolutions of the values start at 0.

    PVTv2 has no GELU after merging. So offsets of the norm are raised until the GELU leaves nearly all values as they
    are, and the biases of keys and values subtract what was added. With PVTv2's heads and only its rate, the result
    differs by less than 0.1 %, at sides that the rate divides. Higher offsets would cost digits in bfloat16.
    """
    dim, name = attn.q.in_features, f'{prefix}sr.weight'
    start = projections_of_pvt(state_dict, prefix, dim, attn.num_heads, num_heads)
    filters = take(state_dict, name, dim, dim, *2 * state_dict[name].shape[-1:])
    merged, scale, offset = (take(state_dict, prefix + key, dim) for key in ('sr.bias', 'norm.weight', 'norm.bias'))
    rate = filters.shape[-1]
    if any(rate % own for own in attn.rates):
        raise CheckpointError(f'{name} merges {rate} x {rate} tokens, which the rates {attn.rates} must divide')
    keys_values = {
        kind: [start.pop(f'{part}.{kind}').chunk(attn.num_groups) for part in 'kv'] for kind in ('weight', 'bias')
    }
    lifted = 3 * scale.abs() + 4  # Three deviations below its mean, a value is 4, and its GELU is 3.9999.
    for i, own in enumerate(attn.rates):
        weight, bias = (torch.cat([part[i] for part in keys_values[kind]]) for kind in ('weight', 'bias'))
        blocks = filters.unflatten(3, (-1, own)).unflatten(2, (-1, own)).sum((2, 4))
        linear = isinstance(getattr(attn, f'sr{i + 1}'), nn.Linear)  # the mean of the tokens
        start |= {
            f'sr{i + 1}.weight': blocks.sum((2, 3)) if linear else blocks,
            f'sr{i + 1}.bias': merged,
            f'norm{i + 1}.weight': scale,
            f'norm{i + 1}.bias': lifted,
            f'kv{i + 1}.weight': weight,
            f'kv{i + 1}.bias': bias - (weight.double() @ (lifted - offset).double()).to(bias.dtype),
        }
        for kind, value in getattr(attn, f'local_conv{i + 1}').state_dict().items():
            start[f'local_conv{i + 1}.{kind}'] = torch.zeros_like(value)
    return start


def enhanced_from_pvt(attn: nn.Module, state_dict: dict[str, Tensor], prefix: str, num_heads: int) -> dict[str, Tensor]:
    """From PVTv2's attention at r = 1, of ``num_heads`` heads, see :func:`projections_of_pvt`.

    The depth-wise convolution starts at 0, so with as many heads this is PVTv2's attention.
    """
    start = projections_of_pvt(state_dict, prefix, attn.proj.in_features, attn.num_heads, num_heads)
    for kind in ('weight', 'bias'):
        start[f'local_conv.{kind}'] = torch.zeros_like(getattr(attn.local_conv, kind))
    return joined(start, 'qkv', 'qkv')


def pvt_of_shunted(state_dict: dict[str, Tensor], prefix: str, dim: int) -> None:
    """Replace, in place, the tensors of shunted attention, or of attention with enhanced values, by those of PVTv2's
    attention that is nearest.

    All groups have the merged tokens of the first one, which merges most. The GELU after Shunted's norm becomes the
    line that is nearest to it where channels have the norm's mean and deviation. Convolutions of the values stay.
    """
    if f'{prefix}qkv.weight' in state_dict:
        for kind, value in take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim, '').items():
            state_dict[f'{prefix}q{kind}'], state_dict[f'{prefix}kv{kind}'] = value.split((dim, 2 * dim))
    groups = sum(f'{prefix}kv{i + 1}.weight' in state_dict for i in range(dim))
    if not groups:
        return
    parts = [take_linear(state_dict, f'{prefix}kv{i + 1}', 2 * dim // groups, dim, 'kv') for i in range(groups)]
    for name in parts[0]:
        keys, values = zip(*(part[name].chunk(2) for part in parts))
        state_dict[prefix + name] = torch.cat((*keys, *values))
    filters = f'{prefix}sr1.weight'
    state_dict[f'{prefix}sr.weight'] = take(state_dict, filters, dim, dim, *2 * state_dict[filters].shape[-1:])
    state_dict[f'{prefix}sr.bias'] = take(state_dict, f'{prefix}sr1.bias', dim)
    scale, mean = (take(state_dict, f'{prefix}norm1.{kind}', dim) for kind in ('weight', 'bias'))
    wide, normal = (1 + scale.square()).sqrt(), torch.distributions.Normal(0.0, 1.0)
    below, density = normal.cdf(mean / wide), normal.log_prob(mean / wide).exp()
    state_dict[f'{prefix}norm.weight'] = scale * (below + mean / wide**3 * density)
    state_dict[f'{prefix}norm.bias'] = mean * below + scale.square() / wide * density


def projections_of_pvt(
    state_dict: dict[str, Tensor], prefix: str, dim: int, num_heads: int, of_pvt: int
) -> dict[str, Tensor]:
    """PVTv2's projections for an attention with as many heads, or with several in the place of each.

    With as many heads they stay as they are. Otherwise each of PVTv2's heads becomes several, each with a part of its
    values. These have the same query and key. PVTv2's logits are products x M y of two tokens; query and key keep the
    largest singular values of M. The first heads have the first part of every head of PVTv2.

    Args:
        dim: channels C.
        num_heads: heads of the result, a multiple of those of PVTv2.
        of_pvt: heads of PVTv2.

    Returns:
        weights (C, C) and biases (C) of ``q``, ``k``, ``v`` and ``proj``.
    """
    if num_heads % of_pvt:
        raise CheckpointError(
            f'these weights have {of_pvt} heads in {prefix.rstrip(".")}, and num_heads must be a multiple of that, '
            f'not {num_heads}'
        )
    start = take_linear(state_dict, f'{prefix}q', dim, dim) | take_linear(state_dict, f'{prefix}proj', dim, dim)
    for name, value in take_linear(state_dict, f'{prefix}kv', 2 * dim, dim, '').items():
        start[f'k{name}'], start[f'v{name}'] = value.chunk(2)
    parts, width = num_heads // of_pvt, dim // num_heads
    if parts == 1:
        return start
    query = torch.cat((start['q.weight'], start['q.bias'][:, None]), 1).double().unflatten(0, (of_pvt, -1))
    key = start['k.weight'].double().unflatten(0, (of_pvt, -1))
    (of_query, a), (of_key, b) = (torch.linalg.qr(matrix.mT) for matrix in (query, key))
    u, values, v = torch.linalg.svd(a @ b.mT)
    # Products are divided by the root of the width of a head, which is smaller here.
    root = (values[:, None, :width] / parts**0.5).sqrt()
    query = (of_query @ (u[..., :width] * root)).mT.flatten(0, 1).repeat(parts, 1)
    key = (of_key @ (v.mT[..., :width] * root)).mT.flatten(0, 1).repeat(parts, 1)
    channels = torch.arange(dim).view(of_pvt, parts, width).transpose(0, 1).flatten()
    return {
        'q.weight': query[:, :-1],
        'q.bias': query[:, -1],
        'k.weight': key,
        'k.bias': torch.zeros_like(start['k.bias']),  # adds the same to all products of a query
        'v.weight': start['v.weight'][channels],
        'v.bias': start['v.bias'][channels],
        'proj.weight': start['proj.weight'][:, channels],
        'proj.bias': start['proj.bias'],
    }


def is_table(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a shape is that of a table (heads, a * a) of windows of any size, for as many heads as in ``shape``."""
    side = math.isqrt(given[1]) if len(given) == 2 else 0
    return side % 2 == 1 and (given[0], side**2) == (shape[0], given[1])
