"""Weights and maps that are converted once, on the CPU in the place of a GPU."""

from collections import Counter

import pytest
import torch
from torch import nn

from mmattn.analysis.least_time import Operators
from mmattn.layers import AggregatedAttention, ShuntedAttention, SpatialReductionAttention, casts


def call(function, x, together):
    with pytest.MonkeyPatch.context() as patch, torch.autocast('cpu', torch.bfloat16):
        patch.setattr(casts, 'launches_casts', lambda x: together)
        return function(x)


@pytest.mark.parametrize('make', [AggregatedAttention, ShuntedAttention, SpatialReductionAttention])
def test_results_are_equal(make):
    """Results and gradients are the same to the bit, with fewer conversions, and without products for the gradients of
    frozen weights."""
    layer, x, found, launched = make(8, 2, 2), torch.randn(2, 4, 6, 8), [], []
    layer.q.requires_grad_(False)
    for together in (False, True):
        layer.zero_grad()
        with Operators() as counter:
            out = call(layer, x, together)
            out.float().square().sum().backward()
        found.append((out, *(p.grad for p in layer.parameters())))
        launched.append(Counter(each.name for each in counter.found))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*found, strict=True))
    trained = sum(p.requires_grad for name, p in layer.named_parameters() if name[:2] in ('sr', 'kv', 'pr'))
    # The map counts, too; the frozen ones have no gradient. On the CPU, the backward pass converts weights again.
    assert launched[0]['_to_copy'] - launched[1]['_to_copy'] >= 2 * trained and launched[0]['mm'] == launched[1]['mm']


def test_what_others_see():
    """A layer with a hook is called itself, and one of another type, as LoRA's; weights that functional_call lends are
    used, and the module keeps nothing."""
    layer, x, called = ShuntedAttention(8, 2, 2), torch.randn(1, 4, 6, 8), []
    layer.sr2.register_forward_hook(lambda module, *_: called.append(module))
    layer.kv1 = nn.Sequential(layer.kv1)
    before, doubled = dict(vars(layer.q)), {name: 2 * tensor for name, tensor in layer.state_dict().items()}
    for function in (layer, lambda x: torch.func.functional_call(layer, doubled, x)):
        assert torch.equal(call(function, x, True), call(function, x, False))
    assert called == [layer.sr2] * 4 and vars(layer.q) == before and 'q' not in vars(layer)
