"""Which backend serves, and what python -m mmattn.selftest says of one that is wrong."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mmattn import selftest
from mmattn.layers import ELSA
from mmattn.ops import backend, elsa, library
from mmattn.packages import version_numbers

needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
SIZES = 1, 7, 8, 2, 8


@pytest.fixture(autouse=True)
def no_triton(monkeypatch):
    """Tests of their own interpret the kernels."""
    monkeypatch.setattr(backend, 'HAS_TRITON', False)


def wrong_forward(right, logits, value, *others):
    return 1.01 * right(logits, value, *others)


def wrong_gradient(right, logits, value, *others):
    return right(logits, 1.01 * value - 0.01 * value.detach(), *others)


def wrong_compiler(right, *_):
    raise RuntimeError("ptxas fatal: Value 'sm_90a' is not defined")


@pytest.mark.parametrize(
    'wrong, words',
    [
        (wrong_forward, '| 1.0e-02 |'),
        (wrong_gradient, '| 1.0e-02 | 1.0e-05 | FAILED'),
        (wrong_compiler, "RuntimeError: ptxas fatal: Value 'sm_90a' is not defined"),
    ],
    ids=['forward', 'gradient', 'compiler'],
)
def test_selftest_finds_a_wrong_backend(monkeypatch, capsys, wrong, words):
    """It names the backend and what is wrong, and ends with status 1. All others pass."""
    monkeypatch.setattr(
        selftest, 'check_backends', partial(selftest.check_backends, dtypes=[torch.float32], sizes=SIZES)
    )
    monkeypatch.setattr(selftest, 'OPERATORS', {name: selftest.OPERATORS[name] for name in ('elsa', 'content')})
    right = elsa.BACKENDS['shifted']
    monkeypatch.setitem(elsa.BACKENDS, 'shifted', lambda *arguments: wrong(right, *arguments))
    with pytest.raises(SystemExit, match='A backend FAILED'):
        selftest.main(['--device', 'cpu'])
    failed = [line for line in capsys.readouterr().out.splitlines() if 'FAILED' in line]
    assert len(failed) == 1 and failed[0].startswith('| elsa | shifted | float32 |') and words in failed[0]


def test_every_backend_passes():
    """Those that this machine can run. What a backend does not take is left out, and nothing else is."""
    rows = list(selftest.check_backends(sizes=SIZES))
    assert not [row for row in rows if not row.passed]
    compared = {(row.operator, row.backend) for row in rows}
    wanted = {(name, each) for name in selftest.OPERATORS for each in selftest.candidates(name)}
    absent = {each for _, each in wanted - compared}
    assert absent == {'triton'} if library.HAS_LIBRARY else absent == {'triton', 'cpp'}


@needs_library
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_chosen_in_a_graph():
    """torch.compile makes one graph, with the compiled operators in it."""
    torch._dynamo.reset()
    graphs = []
    layer = ELSA(12, 2, kernel_size=3, group_width=4).eval()
    compiled = torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    x = torch.randn(1, 4, 5, 12)
    torch.testing.assert_close(compiled(x), layer(x))
    (graph,) = graphs
    called = {str(node.target) for node in graph.graph.nodes}
    assert {'mmattn.neighbourhood_sum.default', 'mmattn.grouped_conv.default'} <= called


@pytest.mark.parametrize('capability, served', [((9, 0), True), ((7, 0), True), ((6, 1), False)])
def test_triton_serves_gpus_that_it_knows(monkeypatch, capability, served):
    """On an older GPU, torch's operations serve, and nothing fails."""
    monkeypatch.setattr(backend, 'HAS_TRITON', True)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: capability)
    x = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=torch.device('cuda'))
    assert backend.triton_takes(x) == served


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(value=torch.zeros(1, 4, 4, 4, dtype=torch.int64)), 'value must be floating-point numbers .*torch.int64'),
        (dict(value=torch.zeros(1, 4, 0, 4)), 'value must have no empty dimension but the first'),
        (dict(ghost_mul=torch.zeros(4, 3, 3, device='meta')), 'must be on one device; .*value on cpu, ghost_mul on m'),
        (dict(dropout_p=float('nan')), 'dropout_p must be a number from 0 to 1, not nan'),
        (dict(backend=['cpp']), r"backend must be None or one of reference, shifted, .*, not \['cpp'\]"),
    ],
    ids=['dtype', 'empty', 'device', 'dropout', 'backend'],
)
def test_checks_of_all_operators(change, message):
    """Dtypes, devices and rates; each operator checks the shapes that it takes."""
    arguments = dict(logits=torch.zeros(1, 4, 4, 2, 9), value=torch.zeros(1, 4, 4, 4))
    with pytest.raises(ValueError, match=message):
        elsa.elsa_attention(**{**arguments, **change})


@pytest.mark.parametrize('name', list(selftest.OPERATORS))
def test_operators_reach_the_checks(name):
    """A dtype that no operator takes, and a backend that none has."""
    row = selftest.OPERATORS[name]
    inputs = [torch.zeros(shape) for shape in row.shapes(*SIZES)]
    with pytest.raises(ValueError, match="backend must be None or one of .*, not 'fast'"):
        row.compute(*inputs, backend='fast')
    with pytest.raises(ValueError, match='must be floating-point numbers'):
        row.compute(*(x.int() for x in inputs), backend=None)
