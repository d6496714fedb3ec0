"""A compiled path that is wrong on this machine is replaced, whatever the caller is doing when it is first used."""

import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmattn.layers import ELSA
from mmattn.ops import axial_attention, backend, elsa, elsa_attention, library, neighbourhood_sum
from mmattn.ops import global_self_attention as gsa
from mmattn.packages import version_numbers

pytestmark = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def wrong_forward(right, logits, value, *others):
    return 1.01 * right(logits, value, *others)


def wrong_gradient(right, logits, value, *others):
    return right(logits, 1.01 * value - 0.01 * value.detach(), *others)


def wrong_compiler(right, *_):
    raise RuntimeError("ptxas fatal: Value 'sm_90a' is not defined")


def inputs(dtype=torch.float32):
    return torch.randn(1, 4, 5, 2, 9, dtype=dtype), torch.randn(1, 4, 5, 8, dtype=dtype)


@pytest.fixture
def plant(monkeypatch):
    """As in a new process, puts a function in the place of a backend; gives the list of its calls."""
    monkeypatch.setattr(backend, '_chosen', {})
    monkeypatch.setattr(backend, '_logged', set())

    def put(backends, name, function=lambda right, *arguments: right(*arguments)):
        calls, right = [], backends[name]
        counted = lambda *arguments: (calls.append(1), function(right, *arguments))[1]
        monkeypatch.setitem(backends, name, counted)
        return calls

    return put


@pytest.mark.parametrize(
    'wrong, words',
    [
        (wrong_forward, r'the largest difference of its result from the reference is \S+ where the tolerance is \S+$'),
        (wrong_gradient, r'difference of its gradient 2 from the reference is \S+ where the tolerance is \S+$'),
        (wrong_compiler, "RuntimeError: ptxas fatal: Value 'sm_90a' is not defined"),
    ],
)
def test_wrong_path_is_replaced(plant, log, wrong, words):
    """It is asked once, one warning has the figures, and the results are right. Who names it gets it."""
    calls = plant(elsa.BACKENDS, 'cpp', wrong)
    logits, value = inputs()
    expected = elsa_attention(logits, value, backend='reference')
    for _ in range(3):
        torch.testing.assert_close(elsa_attention(logits, value), expected)
    assert len(calls) == 1 and len(log) == 2
    assert log[0].startswith(
        "elsa_attention: backend 'cpp' is wrong on cpu in torch.float32 and is not used, 'shifted' serves instead: "
    )
    assert re.search(words, log[0])
    assert log[1] == "elsa_attention on cpu: backend 'shifted'"
    # The sum with any weights is the same code.
    assert not neighbourhood_sum(logits.requires_grad_(), value).grad_fn.name().startswith('neighbourhood_sum')
    if wrong is not wrong_compiler:
        elsa_attention(logits, value, backend='cpp')
        assert len(calls) == 2


def test_right_path_serves(plant, log):
    """It is checked once for each dtype and form, and logged once."""
    calls = plant(elsa.BACKENDS, 'cpp')
    for _ in range(3):
        elsa_attention(*inputs())
    assert len(calls) == 1 + 3 and log == ["elsa_attention on cpu: backend 'cpp'"]
    elsa_attention(*inputs(), torch.ones(8, 3, 3))
    assert len(calls) == 1 + 3 + 2 and len(log) == 1
    elsa_attention(*inputs(torch.float64))
    assert len(calls) == 1 + 3 + 2 and log[1:] == ["elsa_attention on cpu: backend 'shifted'"]


@pytest.mark.parametrize('dim', [1, 2])
def test_wrong_axial_path_is_replaced(plant, log, dim):
    """GSA's C++ code is checked along both dimensions, whichever is asked for first."""
    wrong = lambda right, *given: (1.01 if given[3] == 2 else 1) * right(*given)
    plant(gsa.AXIAL_BACKENDS, 'cpp', wrong)
    query, value, table = torch.randn(1, 4, 5, 2, 3), torch.randn(1, 4, 5, 2, 3), torch.randn(9, 3)
    expected = axial_attention(query, value, table, dim, backend='reference')
    torch.testing.assert_close(axial_attention(query, value, table, dim), expected)
    assert "axial_attention: backend 'cpp' is wrong on cpu" in log[0] and len(log) == 2


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield nullcontext
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize('wrong', [False, True])
@pytest.mark.parametrize(
    'context',
    [
        torch.no_grad,
        torch.inference_mode,
        partial(torch.autocast, 'cpu', torch.bfloat16),
        partial(FlopCounterMode, display=False),
        partial(torch.device, 'meta'),
        pytest.param('deterministic', id='deterministic'),
    ],
    ids=str,
)
def test_first_use_in_any_mode(plant, log, request, context, wrong):
    """Modes of torch that the caller has switched on do not reach the check, and it draws no random numbers."""
    plant(elsa.BACKENDS, 'cpp', wrong_gradient if wrong else lambda right, *arguments: right(*arguments))
    context = request.getfixturevalue(context) if isinstance(context, str) else context
    logits, value = inputs()
    state = torch.get_rng_state()
    with context():
        assert elsa.fastest(logits, value) == ('shifted' if wrong else 'cpp')
    assert torch.get_rng_state().equal(state) and len(log) == 1 + wrong


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
@pytest.mark.parametrize('wrong', [False, True])
def test_first_use_in_a_graph(plant, log, wrong):
    """torch.compile makes one graph, with the paths that were found to be right."""
    plant(elsa.BACKENDS, 'cpp', wrong_compiler if wrong else lambda right, *arguments: right(*arguments))
    torch._dynamo.reset()
    graphs = []
    layer = ELSA(12, 2, kernel_size=3, group_width=4).eval()
    compiled = torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    x = torch.randn(1, 4, 5, 12)
    torch.testing.assert_close(compiled(x), layer(x))
    assert len(graphs) == 1 and len(log) == 2 + wrong
    assert {key[0]: name for key, name in backend._chosen.items()} == dict(
        elsa_attention='shifted' if wrong else 'cpp', grouped_conv='cpp'
    )


def test_what_cannot_be_checked_is_not_decided(plant):
    """Fake tensors have no numbers. Within a backward pass the thread of a GPU is busy: the plain path serves."""
    plant(elsa.BACKENDS, 'cpp')
    logits, value = inputs()
    with torch._subclasses.FakeTensorMode():
        assert elsa.fastest(logits, value) == 'cpp'
    chosen = []
    logits.requires_grad_().register_hook(lambda _: chosen.append(elsa.fastest(logits, value)))
    logits.sum().backward()
    assert chosen == ['shifted'] and not backend._chosen
    layer = ELSA(12, 2, kernel_size=3, group_width=4)
    checkpoint(layer, torch.randn(1, 4, 5, 12), use_reentrant=False).sum().backward()  # chosen in the forward pass
    assert list(backend._chosen.values()) == ['cpp', 'cpp']  # of the logits' convolution, too


@pytest.fixture
def kernels(monkeypatch):
    """Triton's interpreter is chosen on the CPU as the kernels are on a GPU."""
    pytest.importorskip('mmattn.ops.elsa_triton', exc_type=ImportError)
    monkeypatch.setattr(elsa, '_compiled', lambda *_: ('triton',))


SMALL = (1, 2, 9, 5, 6), (1, 5, 6, 8), (8, 3, 3), (8, 3, 3)


@pytest.mark.usefixtures('triton_runs', 'kernels')
@pytest.mark.skipif(torch.cuda.is_available(), reason='kernels are not interpreted where there is a GPU')
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('small', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_kernels_pass(plant, log, monkeypatch, dtype, small):
    """The kernels are far enough below the tolerance in all their dtypes."""
    plant(elsa.BACKENDS, 'triton')
    monkeypatch.setattr(backend, 'TOLERANCE', backend.TOLERANCE / 2)
    monkeypatch.setattr(backend, 'ROUNDINGS', backend.ROUNDINGS / 2)
    if small:
        chosen = backend.choose_backend(
            'elsa', ('triton', 'shifted'), torch.device('cpu'), dtype, elsa._tap_major, SMALL
        )
    else:
        logits, value = inputs(dtype)
        chosen = elsa.fastest(logits, value, value)
    assert chosen == 'triton' and len(log) == 1


@pytest.mark.usefixtures('triton_runs', 'kernels')
@pytest.mark.skipif(torch.cuda.is_available(), reason='kernels are not interpreted where there is a GPU')
def test_layout_follows_the_path(plant, log, monkeypatch):
    """After a fallback, the layer does not make logits for the kernels that are not used."""
    plant(elsa.BACKENDS, 'triton', wrong_compiler)
    layer, seen = ELSA(12, 2, kernel_size=3, group_width=4), []
    make = layer._logits
    monkeypatch.setattr(layer, '_logits', lambda x, tap_major: (seen.append(tap_major), make(x, tap_major))[1])
    x = torch.randn(1, 4, 5, 12)
    out = layer(x)
    layer.backend = 'reference'
    torch.testing.assert_close(out, layer(x))
    assert seen == [False, False] and "'triton' is wrong" in log[0]
