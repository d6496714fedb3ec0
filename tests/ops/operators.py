"""Operators with settings: a function of tensors and a backend, and the shapes of its tensors by name."""

from functools import partial

import torch

from mmattn.ops import (
    aggregated_attention,
    axial_attention,
    elsa_attention,
    mean_shift_attention,
    neighbourhood_attention,
    projected_mean_shift,
    shunted_attention,
    window_attention,
)
from mmattn.ops import attention as plain_attention
from mmattn.ops.any_size import average_pool
from mmattn.ops.batch_norm import batch_norm_relu
from mmattn.ops.gelu import gelu_linear
from mmattn.ops.layer_norm import sum_and_norm
from mmattn.ops.transpose import transposed
from mmattn.selftest import bias_of


def aggregated(size, heads, d, k, h, w):
    B, H, W = size
    shapes = dict(query=(B, H, W, heads, d), key_value=(B, H, W, 2, heads, d), pooled=(B, h, w, 2, heads, d))
    shapes |= dict(temperature=(heads,), embedding=(heads, d), bias=(heads, k * k), pooled_bias=(heads, H, h, W, w))
    shapes |= dict(tokens=(heads, d, k * k), token_bias=(heads, k * k))

    def call(*tensors, backend=None):
        """With a tensor for the bias of pooled tokens."""
        given = dict(zip(shapes, tensors))
        whole = given.pop('pooled_bias')
        return aggregated_attention(pooled_bias=bias_of(whole.flatten(3), W), backend=backend, **given)

    return call, shapes


def attention(B, heads, N, M, d, biased=False):
    shapes = dict(query=(B, heads, N, d), key=(B, heads, M, d), value=(B, heads, M, d))
    return plain_attention, shapes | (dict(bias=(B, heads, N, M)) if biased else {})


def axial(size, heads, k, v, L, dim, beyond='mask', softmax=False, with_key=False):
    shapes = dict(query=(*size, heads, k), value=(*size, heads, v), table=(2 * L - 1, k))
    if with_key:
        shapes['key'] = shapes['query']

    def call(query, value, table, key=None, backend=None):
        return axial_attention(query, value, table, dim, beyond, backend, key=key, softmax=softmax)

    return call, shapes


def batch_norm(size, C, *others):
    """``others``: 'shortcut' or nothing."""
    return batch_norm_relu, dict(x=(*size, C), weight=(C,), bias=(C,)) | dict.fromkeys(others, (*size, C))


def convolution(operator, size, C, width, k, biased=True, **settings):
    shapes = dict(x=(*size, C * (1 + settings.get('gated', False))), weight=(C, width, k, k), bias=(C,))
    if not biased:
        del shapes['bias']
    return partial(operator, **settings), shapes


def elsa(size, heads, d, k, dilation=1, ghosts=('ghost_mul', 'ghost_add')):
    shapes = dict(logits=(*size, heads, k * k), value=(*size, heads * d))

    def call(logits, value, *given, backend=None):
        return elsa_attention(logits, value, dilation=dilation, backend=backend, **dict(zip(ghosts, given)))

    return call, shapes | dict.fromkeys(ghosts, (heads * d, k, k))


def gelu(size, C, D):
    return gelu_linear, dict(x=(*size, C), bias=(C,), weight=(D, C), offset=(D,))


def layer_norm(size, C, summed=True, normed=True):
    """The sum with a branch of which some images lose theirs, the norm of it, or both, one after the other."""
    shapes = dict(x=(*size, C)) | (dict(branch=(*size, C)) if summed else {})
    shapes |= dict(weight=(C,), bias=(C,)) if normed else {}

    def call(x, *given, backend=None):
        given = dict(zip(list(shapes)[1:], given))
        kept = (torch.arange(len(x), device=x.device) % 2).float() if summed else None
        both = sum_and_norm(x, **given, kept=kept, rate=0.2, backend=backend)
        return torch.cat(both if normed else both[:1])

    return call, shapes


def mean_shift(B, heads, N, M, d, probe=True, biased=False):
    shapes = dict(query=(B, heads, N, d), key=(B, heads, M, d), value=(B, heads, M, d))
    shapes |= dict(probe=(B, heads, N, d)) if probe else {}
    shapes |= dict(bias=(1, heads, N, M)) if biased else {}

    def call(query, key, value, *others, backend=None):
        given = dict(zip(list(shapes)[3:], others))
        return mean_shift_attention(query, key, value, backend=backend, **given)

    return call, shapes


def pooled(size, C):
    """Pooled by average, and transposed in memory."""

    def call(x, backend=None):
        return transposed(average_pool(x.permute(0, 3, 1, 2), backend).flatten(2), backend)

    return call, dict(x=(*size, C))


def projected(B, heads, N, d, parts=4):
    """Mean shift of the parts of a projection."""
    return partial(projected_mean_shift, parts=parts, num_heads=heads), dict(x=(B, N, parts * heads * d))


def neighbourhood(size, heads, d, k, dilation=1, others=('bias', 'beyond')):
    shapes = dict.fromkeys(('query', 'key', 'value'), (*size, heads, d))
    optional = dict(bias=(heads, 2 * k - 1, 2 * k - 1), beyond=(2, heads, d))

    def call(query, key, value, *given, backend=None):
        given = dict(zip(others, given))
        bias = given.pop('bias', None)
        return neighbourhood_attention(query, key, value, bias, k, dilation, backend=backend, **given)

    return call, shapes | {name: optional[name] for name in others}


def shunted(size, d, heads, groups):
    """Keys and values of each group of heads have another size."""
    shapes = dict(query=(*size, groups * heads * d))
    for name in ('key', 'value'):
        shapes |= {f'{name} {g}': (size[0], g + 1, 3, heads * d) for g in range(groups)}

    def call(query, *maps, backend=None):
        return shunted_attention(query, maps[:groups], maps[groups:], groups * heads, backend=backend)

    return call, shapes


def windows(size, heads, d, w, shift, parts, padded=False, **settings):
    shapes = dict(x=(*size, parts, heads * d), table=((2 * w - 1) ** 2, heads))
    shapes |= dict(pad=(parts * heads * d,)) if padded else {}

    def call(x, table, pad=None, backend=None):
        return window_attention(x, table, pad, w, shift, gauss=parts == 4, backend=backend, **settings)

    return call, shapes


def results(call, tensors, upstream, backend=None):
    """The result of an operator, and the gradients of its tensors."""
    inputs = [x.detach().requires_grad_() for x in tensors]
    out = call(*inputs, backend=backend)
    return [
        out.detach(),
        *torch.autograd.grad(out, inputs, upstream.to(out), materialize_grads=True, allow_unused=True),
    ]


def assert_near(found, expected, tolerance):
    """Differences are at most a share of the largest number of each tensor, or of 1."""
    for x, y in zip(found, expected, strict=True):
        difference, largest = ((x.double().cpu() - y).abs().max(), y.abs().max()) if y.numel() else (0, 0)
        assert x.shape == y.shape and difference <= tolerance * max(1, largest)
