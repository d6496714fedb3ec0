"""NaN of one number reaches exactly the results and gradients that depend on it, and infinity reaches no others: zero
times either is NaN, so that a sum over zeros would spread them to pixels whose neighbourhood does not have them.

What depends on a number is found with finite numbers: what the reference gives, in float64, changes if the number does.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from mmattn.ops import (
    axial_attention,
    content_attention,
    elsa_attention,
    mean_shift_attention,
    neighbourhood_attention,
    neighbourhood_sum,
    shunted_attention,
)
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv

SINGLE, HALF, BFLOAT, DOUBLE = torch.float32, torch.float16, torch.bfloat16, torch.float64
BAD = math.nan, math.inf, -math.inf


@dataclass
class Case:
    """An operator, called with tensors of these shapes and a backend.

    Where zeros are around a map, torch's convolutions, too, may multiply filters with them or not. So a bad number of
    ``filters``, (..., k, k), is in the middle, and gradients of filters are compared exactly if the number is
    ``margin`` pixels from the border at least.
    """

    call: Callable[..., Tensor]
    shapes: dict[str, tuple[int, ...]]
    filters: frozenset[str] = frozenset()
    margin: int = 0


def neighbourhood(size, k, dilation, *others):
    heads, d = 2, 5
    shapes = dict.fromkeys(('query', 'key', 'value'), (*size, heads, d))
    shapes.update({name: dict(bias=(heads, 2 * k - 1, 2 * k - 1), beyond=(2, heads, d))[name] for name in others})

    def call(query, key, value, bias=None, beyond=None, backend=None):
        return neighbourhood_attention(query, key, value, bias, k, dilation, backend=backend, beyond=beyond)

    return Case(call, shapes)


def elsa(size, d, k, dilation, *ghosts):
    heads = 2
    shapes = dict(logits=(*size, heads, k * k), value=(*size, heads * d))
    shapes.update(dict.fromkeys(ghosts, (heads * d, k, k)))

    def call(logits, value, *given, backend=None):
        return elsa_attention(logits, value, dilation=dilation, backend=backend, **dict(zip(ghosts, given)))

    return Case(call, shapes, frozenset(ghosts), k // 2 * dilation)


def weighted(size, d, k, dilation):
    shapes = dict(weights=(*size, 2, k * k), value=(*size, 2 * d))

    def call(weights, value, backend):  # in C++, and float64 in torch
        return neighbourhood_sum(weights, value, dilation=dilation)

    return Case(call, shapes, frozenset(['weights']), k // 2 * dilation)


def axial(size, L, dim, beyond='mask', softmax=False, key=False):
    shapes = dict(query=(*size, 2, 5), value=(*size, 2, 3), table=(2 * L - 1, 5))
    if key:
        shapes['key'] = shapes['query']

    def call(query, value, table, key=None, backend=None):
        return axial_attention(query, value, table, dim, beyond, backend, key=key, softmax=softmax)

    return Case(call, shapes)


def convolution(operator, size, width, k, **settings):
    C = 8
    shapes = dict(x=(*size, C), weight=(C, width, k, k), bias=(C,))
    return Case(partial(operator, **settings), shapes, frozenset(['weight']), k // 2 * settings.get('dilation', 1))


def shunted(query, key, other_key, value, other_value, backend):
    return shunted_attention(query, [key, other_key], [value, other_value], 4, backend=backend)


MAPS, TOKENS = ('query', 'key', 'value'), dict.fromkeys(('query', 'key', 'value', 'probe'), (2, 2, 19, 5))
SHUNTED = dict(query=(2, 3, 5, 8)) | dict.fromkeys(('key', 'other_key', 'value', 'other_value'), (2, 2, 3, 4))
CASES = [
    (neighbourhood((2, 6, 19), 3, 1, 'bias'), 'reference cpp'),
    (neighbourhood((1, 9, 37), 7, 1, 'bias'), 'cpp'),
    (neighbourhood((1, 7, 7), 7, 1, 'bias'), 'cpp'),
    (neighbourhood((1, 12, 35), 5, 2, 'bias'), 'cpp'),
    (neighbourhood((1, 10, 28), 9, 1), 'cpp'),
    (neighbourhood((1, 4, 5), 3, 2, 'bias', 'beyond'), 'reference cpp'),
    (elsa((2, 6, 19), 5, 3, 1, 'ghost_mul', 'ghost_add'), 'reference shifted cpp'),
    (elsa((1, 8, 17), 9, 7, 2, 'ghost_add'), 'shifted cpp'),
    (elsa((1, 8, 17), 33, 5, 1), 'shifted band cpp'),
    (weighted((2, 6, 9), 9, 3, 1), 'None'),
    (axial((1, 19, 3), 19, 1), 'reference batched exported cpp'),
    (axial((2, 2, 9), 12, 2), 'batched exported cpp'),
    (axial((2, 2, 21), 4, 2), 'reference batched exported cpp'),
    (axial((1, 5, 2), 2, 1), 'batched exported cpp'),
    (axial((1, 11, 2), 4, 1, 'stretch'), 'batched cpp'),
    (axial((1, 11, 2), 4, 1, key=True), 'reference batched'),
    (axial((1, 2, 11), 4, 2, softmax=True, key=True), 'reference batched'),
    (Case(content_attention, dict.fromkeys(MAPS, (2, 3, 4, 2, 5))), 'reference batched'),
    (convolution(grouped_conv, (2, 7, 19), 4, 3), 'reference cpp'),
    (convolution(grouped_conv, (1, 9, 37), 8, 5, dilation=2), 'cpp'),
    (convolution(depthwise_conv, (2, 7, 19), 1, 3), 'reference cpp'),
    (convolution(depthwise_conv, (1, 9, 12), 1, 7), 'cpp'),
    pytest.param(Case(mean_shift_attention, TOKENS), 'reference channels exported bias', marks=pytest.mark.slow),
    pytest.param(
        Case(mean_shift_attention, TOKENS | dict(bias=(1, 2, 19, 19))),
        'reference channels bias',
        marks=pytest.mark.slow,
    ),
    pytest.param(Case(shunted, SHUNTED), 'reference fused', marks=pytest.mark.slow),
]
KERNELS = [
    neighbourhood((1, 3, 9), 3, 1, 'bias'),
    neighbourhood((1, 4, 7), 3, 2, 'bias', 'beyond'),
    elsa((1, 3, 9), 3, 3, 1, 'ghost_add'),
    axial((1, 2, 9), 4, 2),
    axial((1, 7, 2), 7, 1),
]
EXPORTED = 'band', 'exported'  #: backends of graphs that are exported: their gradients are not used


@pytest.mark.parametrize('case, backends', CASES)
@pytest.mark.parametrize(
    'dtypes, bad, numbers',
    [
        pytest.param((SINGLE,), (math.nan, math.inf), 3, id='single'),
        pytest.param((SINGLE, BFLOAT, HALF, DOUBLE), BAD, 6, id='all', marks=pytest.mark.slow),
    ],
)
def test_a_number_reaches_what_depends_on_it(case, backends, dtypes, bad, numbers):
    """In all paths of the CPU: numbers inside of a map, in its corners, and in the last parts of vectors."""
    wrong = spread(case, backends.split(), dtypes, bad, numbers)
    assert not wrong, '\n'.join(wrong)


@pytest.mark.slow
@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize('case', KERNELS)
def test_of_kernels(case):
    """In the GPU kernels."""
    pytest.importorskip('mmattn.ops.neighbourhood.triton', exc_type=ImportError)
    wrong = spread(case, ['triton'], (SINGLE, BFLOAT), BAD, 3)
    assert not wrong, '\n'.join(wrong)


def spread(case, backends, dtypes, bad, numbers):
    """What is wrong, as texts, for some numbers of each tensor: the first, the middle, the last and random ones."""
    generator = torch.Generator().manual_seed(1)
    exact = [0.5 * torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in case.shapes.values()]
    out = case.call(*exact, backend='reference')
    exact.append(torch.randn(out.shape, generator=generator, dtype=DOUBLE))
    before = results(case, 'reference', exact)
    served = [(name, dtype) for name in backends for dtype in dtypes if dtype == SINGLE or serves(case, name, dtype)]
    wrong = []
    for number, (name, x) in enumerate(zip([*case.shapes, 'upstream'], exact)):
        random = torch.randint(x.numel(), (numbers - 3,), generator=generator).tolist()
        for flat in sorted({0, x.numel() // 2, x.numel() - 1, *random}):
            place = tuple(int(n) for n in np.unravel_index(flat, x.shape))
            if name in case.filters and name != 'weights':
                place = (*place[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
            inside = all(case.margin <= n < size - case.margin for n, size in zip(place[1:3], x.shape[1:3]))
            after = results(case, 'reference', with_number(exact, number, place, x[place] + 0.5))
            depends = [(a - b).abs() > 1e-13 * b.abs().max() for a, b in zip(after, before)]
            for (backend, dtype), value in itertools.product(served, bad):
                found = results(case, backend, with_number(exact, number, place, value, dtype))
                for of, y, wanted in zip(['result', *case.shapes], found, depends):
                    reached = ~y.isfinite()
                    beyond, missing = (reached & ~wanted).sum().item(), (wanted & ~reached).sum().item()
                    if not inside and not case.filters.isdisjoint((name, of)):
                        beyond = 0
                    if backend == 'fused' or not math.isnan(value):  # torch's fused attention loses NaN
                        missing = 0
                    if beyond or missing:
                        wrong.append(
                            f'{backend}, {dtype}: {value} at {place} of {name} reaches {beyond} numbers of {of} beyond '
                            f'the {wanted.sum()} that depend on it, and not {missing} of these'
                        )
    return wrong


def with_number(tensors, number, place, value, dtype=DOUBLE):
    """The tensors, one of which has a value at a place."""
    tensors = [x.to(dtype, copy=True) for x in tensors]
    tensors[number][place] = value
    return tensors


def results(case, backend, tensors):
    """What a backend gives, and the gradients; the last tensor is that of the result."""
    inputs = [x.detach().requires_grad_(backend not in EXPORTED) for x in tensors[:-1]]
    out = case.call(*inputs, backend=backend)
    if backend in EXPORTED:
        return [out]
    found = torch.autograd.grad(out, inputs, tensors[-1].to(out), allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


def serves(case, backend, dtype):
    try:
        case.call(*(torch.ones(shape, dtype=dtype) for shape in case.shapes.values()), backend=backend)
    except ValueError as error:
        assert 'takes tensors of' in str(error)
        return False
    return True
