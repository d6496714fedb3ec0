"""NaN of one number reaches exactly the results and gradients that depend on it, and infinity reaches no others: zero
times either is NaN, so that a sum over zeros would spread them to pixels whose neighbourhood does not have them.

What depends on a number is found with finite numbers: what the reference gives, in float64, changes if the number does.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from mmattn.ops import content_attention, neighbourhood_sum
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv
from tests.ops.operators import aggregated, axial, convolution, elsa, mean_shift, neighbourhood, results, shunted

SINGLE, HALF, BFLOAT, DOUBLE = torch.float32, torch.float16, torch.bfloat16, torch.float64
NAN = np.uint32(0x7FFFFFFF).view(np.float32).item()  # all bits, as torch makes it of float16; math.nan has fewer
BAD = NAN, math.inf, -math.inf


def weighted(weights, value, backend):  # in C++, and float64 in torch
    return neighbourhood_sum(weights, value)


#: Where zeros are around a map, torch's convolutions, too, may multiply filters with them or not. So a bad number of
#: these, (..., k, k), is in the middle, and their gradients are compared exactly if the number is so many pixels from
#: the border as the last number of a case says.
FILTERS = {'weight', 'weights', 'ghost_mul', 'ghost_add', 'tokens', 'token_bias'}
MAPS, BIAS, GHOST = ('query', 'key', 'value'), ('bias',), ('ghost_add',)
CASES = [
    (neighbourhood((2, 6, 19), 2, 5, 3, 1, BIAS), 'reference cpp', 0),
    (neighbourhood((1, 9, 37), 2, 5, 7, 1, BIAS), 'cpp', 0),
    (neighbourhood((1, 7, 7), 2, 5, 7, 1, BIAS), 'cpp', 0),
    (neighbourhood((1, 12, 35), 2, 5, 5, 2, BIAS), 'cpp', 0),
    (neighbourhood((1, 10, 28), 2, 5, 9, 1, ()), 'cpp', 0),
    (neighbourhood((1, 4, 5), 2, 5, 3, 2), 'reference cpp', 0),
    (aggregated((1, 5, 19), 2, 5, 3, 2, 3), 'reference shifted cpp', 1),
    (elsa((2, 6, 19), 2, 5, 3), 'reference shifted cpp', 1),
    (elsa((1, 8, 17), 2, 9, 7, 2, GHOST), 'shifted cpp', 6),
    (elsa((1, 8, 17), 2, 33, 5, 1, ()), 'shifted band cpp', 0),
    ((weighted, dict(weights=(2, 6, 9, 2, 9), value=(2, 6, 9, 18))), 'None', 1),
    (axial((1, 19, 3), 2, 5, 3, 19, 1), 'reference batched exported cpp', 0),
    (axial((2, 2, 9), 2, 5, 3, 12, 2), 'batched exported cpp', 0),
    (axial((2, 2, 21), 2, 5, 3, 4, 2), 'reference batched exported cpp', 0),
    (axial((1, 5, 2), 2, 5, 3, 2, 1), 'batched exported cpp', 0),
    (axial((1, 11, 2), 2, 5, 3, 4, 1, 'stretch'), 'batched cpp', 0),
    (axial((1, 11, 2), 2, 5, 3, 4, 1, with_key=True), 'reference batched', 0),
    (axial((1, 2, 11), 2, 5, 3, 4, 2, softmax=True, with_key=True), 'reference batched', 0),
    ((content_attention, dict.fromkeys(MAPS, (2, 3, 4, 2, 5))), 'reference batched', 0),
    (convolution(grouped_conv, (2, 7, 19), 8, 4, 3), 'reference cpp', 1),
    (convolution(grouped_conv, (1, 9, 37), 8, 8, 5, dilation=2), 'cpp', 4),
    (convolution(depthwise_conv, (2, 7, 19), 8, 1, 3), 'reference cpp', 1),
    (convolution(depthwise_conv, (1, 9, 12), 8, 1, 7), 'cpp', 3),
    pytest.param(mean_shift(2, 2, 19, 19, 5), 'reference channels exported bias', 0, marks=pytest.mark.slow),
    pytest.param(mean_shift(2, 2, 19, 19, 5, biased=True), 'reference channels bias', 0, marks=pytest.mark.slow),
    pytest.param(shunted((2, 3, 5), 2, 2, 2), 'reference fused', 0, marks=pytest.mark.slow),
]
#: operator, margin, dtypes, and whether a number may reach whole tiles: then kernels multiply matrices
KERNELS = [
    (neighbourhood((1, 3, 9), 2, 5, 3, 1, BIAS), 0, (SINGLE,), False),
    (neighbourhood((1, 4, 7), 2, 5, 3, 2), 0, (SINGLE,), False),
    (elsa((1, 3, 9), 2, 3, 3, 1, GHOST), 1, (SINGLE, BFLOAT), False),
    (axial((1, 2, 9), 2, 5, 3, 4, 2), 0, (SINGLE, BFLOAT), True),
    (axial((1, 7, 2), 2, 5, 3, 7, 1), 0, (SINGLE, BFLOAT), True),
    (mean_shift(2, 2, 3, 5, 3), 0, (SINGLE, BFLOAT), False),
]
EXPORTED = 'band', 'exported'  #: backends of graphs that are exported: their gradients are not used


@pytest.mark.parametrize('operator, backends, margin', CASES)
@pytest.mark.parametrize(
    'dtypes, bad, numbers',
    [
        pytest.param((SINGLE,), (NAN, math.inf), 3, id='single'),
        pytest.param((SINGLE, BFLOAT, HALF, DOUBLE), BAD, 6, id='all', marks=pytest.mark.slow),
    ],
)
def test_a_number_reaches_what_depends_on_it(operator, backends, margin, dtypes, bad, numbers):
    """In all paths of the CPU: numbers inside of a map, in its corners, and in the last parts of vectors."""
    wrong = spread(*operator, margin, backends.split(), dtypes, bad, numbers)
    assert not wrong, '\n'.join(wrong)


@pytest.mark.slow
@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize('operator, margin, dtypes, tiles', KERNELS)
def test_of_kernels(operator, margin, dtypes, tiles):
    """In the GPU kernels. None loses a NaN."""
    pytest.importorskip('mmattn.ops.neighbourhood.triton', exc_type=ImportError)
    wrong = spread(*operator, margin, ['triton'], dtypes, BAD, 3, tiles)
    assert not wrong, '\n'.join(wrong)


def spread(call, shapes, margin, backends, dtypes, bad, numbers, tiles=False):
    """What is wrong, as texts, for some numbers of each tensor: the first, the middle, the last and random ones."""
    filters = FILTERS | ({'bias'} if 'tokens' in shapes else set())  # aggregated attention adds it around a map, too
    generator = torch.Generator().manual_seed(1)
    exact = [0.5 * torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes.values()]
    out = call(*exact, backend='reference')
    exact.append(torch.randn(out.shape, generator=generator, dtype=DOUBLE))
    before = results(call, exact[:-1], exact[-1], 'reference')
    served = [
        (name, dtype) for name in backends for dtype in dtypes if dtype == SINGLE or serves(call, shapes, name, dtype)
    ]
    wrong = []
    for number, (name, x) in enumerate(zip([*shapes, 'upstream'], exact)):
        random = torch.randint(x.numel(), (numbers - 3,), generator=generator).tolist()
        for flat in sorted({0, x.numel() // 2, x.numel() - 1, *random}):
            place = tuple(int(n) for n in np.unravel_index(flat, x.shape))
            if name in filters and name != 'weights':
                place = (*place[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
            inside = all(margin <= n < size - margin for n, size in zip(place[1:3], x.shape[1:3]))
            *changed, upstream = with_number(exact, number, place, x[place] + 0.5)
            after = results(call, changed, upstream, 'reference')
            depends = [(a - b).abs() > 1e-13 * b.abs().max() for a, b in zip(after, before)]
            for (backend, dtype), value in itertools.product(served, bad):
                *changed, upstream = with_number(exact, number, place, value, dtype)
                if backend in EXPORTED:
                    found = [call(*changed, backend=backend)]
                else:
                    found = results(call, changed, upstream, backend)
                for of, y, wanted in zip(['result', *shapes], found, depends):
                    reached = ~y.isfinite()
                    beyond, missing = (reached & ~wanted).sum().item(), (wanted & ~reached).sum().item()
                    if tiles or (not inside and not filters.isdisjoint((name, of))):
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


def serves(call, shapes, backend, dtype):
    try:
        call(*(torch.ones(shape, dtype=dtype) for shape in shapes.values()), backend=backend)
    except ValueError as error:
        assert 'takes tensors of' in str(error)
        return False
    return True
