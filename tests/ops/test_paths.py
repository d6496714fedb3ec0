"""Every backend of every operator on the CPU is the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.global_self_attention import BEYOND, batched
from mmattn.ops.grouped_conv import grouped_conv
from tests.ops.measuring import torch_threads
from tests.ops.operators import (
    assert_near,
    attention,
    axial,
    convolution,
    elsa,
    mean_shift,
    neighbourhood,
    results,
    shunted,
)

few, one_to = st.integers(1, 3), lambda most: st.integers(1, most)
any_of = lambda *names: st.lists(st.sampled_from(names), unique=True)
sides = st.tuples(st.integers(0, 2), one_to(21), one_to(37))
widths, bools = st.sampled_from([1, 3, 7, 8, 11, 16, 33, 40]), st.booleans()
odd = st.sampled_from([1, 3, 5, 7])
#: operator -> its backends beside the reference, and what it is called with
OPERATORS = {
    'attention': ('fused', st.builds(attention, few, few, one_to(16), one_to(20), one_to(9), bools)),
    'shunted': (
        'fused',
        st.builds(shunted, st.tuples(one_to(2), one_to(9), one_to(9)), st.just(4), one_to(2), groups=few),
    ),
    'mean shift': (
        'channels exported bias',
        st.builds(mean_shift, few, few, one_to(20), one_to(20), one_to(17), bools, bools),
    ),
    'axial': (
        'batched exported cpp',
        st.builds(axial, sides, few, widths, widths, one_to(24), one_to(2), st.sampled_from(BEYOND)),
    ),
    'elsa': (
        'shifted band cpp',
        st.builds(elsa, sides, few, widths, odd, few, any_of('ghost_mul', 'ghost_add')),
    ),
    'neighbourhood': (
        'cpp',
        st.builds(
            neighbourhood, sides, few, widths, st.sampled_from([1, 3, 5, 7, 9]), one_to(4),
            any_of('bias', 'beyond'),
        ),
    ),
    'grouped convolution': (
        'cpp',
        st.tuples(one_to(6), st.sampled_from([4, 8, 12, 20])).flatmap(
            lambda n: st.builds(
                convolution, st.just(grouped_conv), sides, st.just(n[0] * n[1]), st.just(n[1]), odd, bools,
                dilation=st.sampled_from([1, 1, 2, 5, 40]),
            )
        ),
    ),
    'depth-wise convolution': (
        'cpp',
        st.builds(
            convolution, st.just(depthwise_conv), sides, st.sampled_from([1, 7, 16, 27, 64, 81]), st.just(1),
            st.sampled_from([3, 5, 7]), bools,
        ),
    ),
}  # fmt: skip
LAYOUTS = {
    'whole': lambda x: x.clone(),
    'part': lambda x: torch.cat([x[..., :1], x, x], -1)[..., 1 : 1 + x.shape[-1]],  # of a projection
    'turned': lambda x: x.transpose(1, -1).contiguous().transpose(1, -1) if x.dim() > 2 else x.clone(),
}


#: what random sizes seldom are
HARD = {
    'attention': [attention(2, 1, 16, 5, 4)],  # queries are split over threads
    'shunted': [shunted((2, 4, 4), 4, 1, 2)],
    'mean shift': [mean_shift(2, 3, 5, 7, 9, biased=True)],
    'axial': [axial((2, 7, 4), 2, 3, 2, 5, 1), axial((3, 3, 8), 1, 2, 4, 3, 2, 'stretch')],
    'elsa': [elsa((2, 5, 8), 3, 2, 7, 2), elsa((1, 9, 12), 2, 33, 3)],
    'neighbourhood': [
        neighbourhood((1, 33, 37), 2, 32, 7, others=('bias',)),
        neighbourhood((1, 5, 4), 2, 8, 3, 2),  # both sides are continued
        neighbourhood((1, 40, 12), 1, 32, 3, 2),  # several tasks of rows
    ],
}


@pytest.mark.parametrize('name, operator', [(name, operator) for name, each in HARD.items() for operator in each])
def test_hard_cases(name, operator):
    """The same of sizes that go other ways through the code."""
    compare(name, operator, ['part'] * 8, 16, 40)


@pytest.mark.parametrize('name', OPERATORS)
@settings(max_examples=max(15, settings().max_examples))
@given(
    data=st.data(),
    layouts=st.lists(st.sampled_from(list(LAYOUTS)), min_size=8, max_size=8),
    threads=st.sampled_from([1, 3, 16]),
    most=st.sampled_from([0, 40, 2**20]),
)
def test_backends_are_the_reference(name, data, layouts, threads, most):
    """The result and all gradients, in float64, and in C++ to the precision of float32: of maps smaller than a
    neighbourhood and than vectors of channels, parts of projections and maps in another layout, and with more threads
    than rows. 'batched' works on blocks of lines."""
    compare(name, data.draw(OPERATORS[name][1]), layouts, threads, most)


def compare(name, operator, layouts, threads, most):
    call, shapes = operator
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes.values()]
    upstream = torch.randn_like(call(*tensors, backend='reference'))
    *tensors, upstream = (LAYOUTS[kind](x) for kind, x in zip(layouts, (*tensors, upstream)))
    expected = results(call, tensors, upstream, 'reference')
    with pytest.MonkeyPatch.context() as patch, torch_threads(threads):
        patch.setattr(batched, 'MAX_SCORES', most)
        for backend in OPERATORS[name][0].split():
            if backend != 'cpp':
                assert_near(results(call, tensors, upstream, backend), expected, 1e-9)
            elif library.HAS_LIBRARY:
                found = results(call, [x.float() for x in tensors], upstream, backend)
                assert {x.dtype for x in found} == {torch.float32}
                assert found[0].is_contiguous() or name == 'depth-wise convolution'  # it is torch's
                assert_near(found, expected, 1e-5)
