import copy
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from mmattn.ops.recompute import _AsBefore, recompute


def block():
    return nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 3, 1)).double()


class Recomputed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return recompute(self.inner, x)


@pytest.mark.parametrize('train', [True, False])
def test_modules_are_as_they_were(train):
    """Weights and statistics that were lent for the forward pass, and its mode, are those of the recomputation. Lent
    statistics are updated once, and the module's own never."""
    inner, x = block().train(train), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    results = []
    for module in (inner, Recomputed(inner)):
        tensors = copy.deepcopy(module.state_dict(keep_vars=True))
        for tensor in tensors.values():
            tensor.data = tensor.data * 2 + 1
        own = copy.deepcopy(inner.state_dict())
        loss = functional_call(module, tensors, x).pow(3).sum()
        inner.train(not train)
        loss.backward()
        assert all(m.training != train for m in inner) and inner[1].momentum == 0.1
        inner.train(train)
        assert all(torch.equal(value, own[name]) for name, value in inner.state_dict().items())
        results.append([t if t.grad is None else t.grad for t in tensors.values()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_norms_count_once():
    """A batch norm is computed again, and counts one batch; SyncBatchNorm counts in another way."""
    inner = nn.Sequential(nn.Conv2d(3, 3, 1), nn.SyncBatchNorm(3), nn.Tanh(), nn.Conv2d(3, 3, 1))
    recompute(inner, torch.randn(2, 3, 6, 6)).pow(3).sum().backward()
    assert inner[1].num_batches_tracked == 1 and inner[1].momentum == 0.1


def test_recomputations_in_two_threads():
    """A thread that begins while another one computes again does not take what that one has set for the state of the
    modules, which would stay: norms would have a momentum of 0."""
    norm = nn.BatchNorm2d(2)
    first, second = _AsBefore([norm]), _AsBefore([norm])
    began, ended = threading.Event(), threading.Event()

    def other():
        began.set()
        with second:
            ended.wait(10)

    thread = threading.Thread(target=other)
    with first:
        assert norm.momentum == 0
        thread.start()
        began.wait(10)
        time.sleep(0.1)
    ended.set()
    thread.join(10)
    assert norm.momentum == 0.1


def test_gradients_of_torch_func():
    """torch.func refuses hooks for activations, so they are kept."""
    inner, x = block().eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    gradients = [
        torch.func.grad(lambda x, call=call: call(x).pow(3).sum())(x) for call in (inner, partial(recompute, inner))
    ]
    assert torch.equal(*gradients)


def test_traced_graphs_are_stored(tmp_path):
    """A graph of torch.jit.trace, which may be made with gradients on, has no steps in Python."""
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.jit.trace(Recomputed(block().eval()), x).save(tmp_path / 'graph.pt')
