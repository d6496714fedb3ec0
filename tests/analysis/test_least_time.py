import pytest
import torch
import torch.nn.functional as F

from mmattn.analysis.least_time import Machine, least_time
from mmattn.ops import axial_attention, library

#: one multiply-add a second, and a byte; so seconds are counts
COUNTS = Machine(1.0, {1: 1.0})


def costs(function):
    """Multiply-adds of a function, and the sum over its operators of the larger of multiply-adds and bytes."""
    found = least_time(function, COUNTS)
    return found.products, found.operators


def test_products_and_memory():
    """An operator takes the time of its multiply-adds or of its memory, whichever is longer, and views take none."""
    a, b = torch.ones(40, 20), torch.ones(20, 30)
    assert costs(lambda: a @ b) == (24_000, 24_000)
    assert costs(lambda: a + 1) == (0, 2 * 4 * 800)
    assert costs(lambda: a.t().unsqueeze(0).detach()) == (0, 0)
    assert costs(lambda: torch.ones(40, 1).expand(40, 20).add(a))[1] == 4 * (40 + 40 + 800 + 800)
    assert costs(lambda: torch.empty(9).copy_(torch.empty(9)))[1] == 2 * 4 * 9


def test_copies_in_a_cache_are_faster():
    """The speed of memory is that of a copy of at least as many bytes, or of the largest copy."""
    machine = Machine(1.0, {100: 10.0, 1000: 2.0})
    assert [machine.seconds(0, traffic) for traffic in (50, 500, 5000)] == [5, 250, 2500]
    assert machine.seconds(300, 500) == 300


@pytest.mark.parametrize(('groups', 'wanted'), [(1, True), (8, True), (8, False)])
def test_gradients_of_a_convolution(groups, wanted):
    """A step costs three times the convolution's multiply-adds, twice without the gradient of the input, with groups,
    too, which torch's own count leaves out."""
    x = torch.ones(1, 8, 5, 7, requires_grad=wanted)
    weight = torch.ones(8, 8 // groups, 3, 3, requires_grad=True)
    products, _ = costs(lambda: F.conv2d(x, weight, padding=1, groups=groups).backward(torch.ones(1, 8, 5, 7)))
    assert products == (3 if wanted else 2) * 8 * 5 * 7 * 9 * 8 // groups


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='needs the C++ operators')
def test_gradients_of_an_operator():
    """A step along lines of 6 pixels has two products forward and five backward."""
    query, value = torch.ones(2, 1, 4, 6, 2, 3, requires_grad=True)
    table = torch.ones(11, 3, requires_grad=True)
    grad = torch.ones(1, 4, 6, 2, 3)
    products, _ = costs(lambda: axial_attention(query, value, table, 2, backend='cpp').backward(grad))
    assert products == 7 * (4 * 6 * 2) * 6 * 3
