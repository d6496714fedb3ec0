"""Which backend serves, and what python -m mmattn.selftest says of one that is wrong."""

from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mmattn import selftest
from mmattn.ops import (
    attention,
    axial_attention,
    backend,
    content_attention,
    elsa,
    library,
    mean_shift_attention,
    neighbourhood_attention,
    neighbourhood_sum,
    shunted_attention,
    window_attention,
)
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.ops.mean_shift import mean_shift_by_landmarks

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
    """It names the backend and what is wrong, and ends with status 1. All others pass. Only the dtype that is named is
    tried."""
    monkeypatch.setattr(selftest, 'check_backends', partial(selftest.check_backends, sizes=SIZES))
    monkeypatch.setattr(selftest, 'OPERATORS', {name: selftest.OPERATORS[name] for name in ('elsa', 'content')})
    right = elsa.BACKENDS['shifted']
    monkeypatch.setitem(elsa.BACKENDS, 'shifted', lambda *arguments: wrong(right, *arguments))
    with pytest.raises(SystemExit, match='A backend FAILED'):
        selftest.main(['--device', 'cpu', '--dtype', 'float32'])
    failed = [line for line in capsys.readouterr().out.splitlines() if 'FAILED' in line]
    assert len(failed) == 1 and failed[0].startswith('| elsa | shifted | float32 |') and words in failed[0]


@pytest.mark.parametrize(
    'sizes', [SIZES, pytest.param(selftest.SIZES, marks=pytest.mark.slow)], ids=['small', 'those of users']
)
def test_every_backend_passes(sizes):
    """Those that this machine can run. What a backend does not take is left out, and nothing else is."""
    rows = list(selftest.check_backends(sizes=sizes))
    assert not [row for row in rows if not row.passed]
    compared = {(row.operator, row.backend) for row in rows}
    wanted = {(name, each) for name in selftest.OPERATORS for each in selftest.candidates(name)}
    absent = {each for _, each in wanted - compared}
    assert absent == {'triton'} if library.HAS_LIBRARY else absent == {'triton', 'cpp'}


@pytest.mark.parametrize(
    'capability, off, served, multiplied',
    [
        ((9, 0), False, True, True),
        ((7, 0), False, True, False),
        ((6, 1), False, False, False),
        ((9, 0), True, False, False),
    ],
    ids=['9.0', '7.0', '6.1', 'off'],
)
def test_triton_serves_gpus_that_it_knows(monkeypatch, capability, off, served, multiplied):
    """On an older GPU, or if the user does not want it, torch's operations serve, and nothing fails. Kernels that
    multiply matrices need tensor cores, which float32 does not use."""
    monkeypatch.setattr(backend, 'HAS_TRITON', True)
    monkeypatch.setattr(backend, 'HAS_PRODUCTS', True)
    monkeypatch.setattr(backend, 'TRITON_IS_OFF', off)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: capability)
    monkeypatch.setattr(backend, '_capability', backend._capability.__wrapped__)
    x = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=torch.device('cuda'))
    assert (backend.triton_takes(x), backend.triton_multiplies(x)) == (served, multiplied)
    x.dtype = torch.float32
    assert (backend.triton_takes(x), backend.triton_multiplies(x)) == (served, False)


@pytest.mark.skipif(not hasattr(torch.library, 'triton_op'), reason='there, fake tensors of a GPU need one')
def test_kernels_are_for_plain_tensors(monkeypatch):
    """Others, such as shards, have no memory that a kernel could read. Fake ones are seen by their mode."""
    monkeypatch.setattr(backend, 'HAS_TRITON', True)
    with FakeTensorMode():
        x = torch.empty(2, device='cuda')
        assert backend.triton_takes(x)
    assert not backend.triton_takes(x)


@pytest.mark.parametrize('value, off', [('off', True), (None, False)], ids=str)
def test_triton_is_off(monkeypatch, value, off):
    """By one variable of the environment. Another value is refused, and not taken for one of both."""
    monkeypatch.delenv('MMATTN_TRITON', raising=False)
    if value:
        monkeypatch.setenv('MMATTN_TRITON', value)
    spec = spec_from_file_location('mmattn.ops.imported_again', backend.__file__)
    again = module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.TRITON_IS_OFF is off
    monkeypatch.setenv('MMATTN_TRITON', 'no')
    with pytest.raises(ValueError, match="must be 'off', not 'no'"):
        spec.loader.exec_module(module_from_spec(spec))


def test_a_kernel_that_fails(monkeypatch):
    """The user is told which backend failed, of what, and how to go on."""
    gpu = pytest.importorskip('mmattn.ops.gpu')
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    with pytest.raises(RuntimeError, match="backend 'triton' failed with .*'sm_90a'.*set MMATTN_TRITON=off") as caught:
        gpu.launch({(1,): wrong_compiler}, (1,), torch.zeros(1))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_launch_is_known_again(monkeypatch):
    """Triton looks up a kernel once for the same arguments, wherever they are in memory, and again if anything differs
    that may need another one."""
    gpu = pytest.importorskip('mmattn.ops.gpu')
    if not hasattr(gpu.triton, 'knobs'):
        pytest.skip('Triton is older than 3.4')
    monkeypatch.setattr(gpu, 'KEEPS_LAUNCHES', True)
    monkeypatch.setattr(gpu, 'LAUNCHES', {})
    monkeypatch.setattr(gpu.driver, '_active', SimpleNamespace(get_current_stream=lambda device: 'stream'))
    looked_up, started = [], []
    compiled = SimpleNamespace(run=lambda *args: started.append(args), function='function', packed_metadata='metadata')

    class Kernel:
        arg_names = ('x', 'n', 'WIDTH')

        def __getitem__(self, grid):
            return lambda *args, **options: looked_up.append((grid, args, options)) or compiled

    numbers = torch.zeros(64)
    kernel, x, settings = Kernel(), numbers[:8], dict(num_warps=4, WIDTH=8, n=5)
    gpu.run(kernel, (2, 3), x, **settings)
    gpu.run(kernel, (2, 3), y := numbers[16:], **settings)
    # in the order of the kernel, without options, and without metadata and hooks
    handles = 'stream', 'function', 'metadata', None, None, None
    assert len(looked_up) == 1 and started == [(2, 3, 1, *handles, y.data_ptr(), 5, 8)]
    for grid, given, others in [
        ((4,), x, {}),
        ((2, 3), numbers[1:], {}),
        ((2, 3), x.half(), {}),
        ((2, 3), None, {}),
        ((2, 3), x, dict(num_warps=8)),
        ((2, 3), x, dict(WIDTH=4)),
        ((2, 3), x, dict(n=6)),
    ]:
        gpu.run(kernel, grid, given, **settings | others)
    assert len(looked_up) == 8 and len(started) == 1
    monkeypatch.setattr(gpu.triton.knobs.runtime, 'launch_enter_hook', print)
    gpu.run(kernel, (2, 3), x, **settings)
    monkeypatch.undo()
    assert len(looked_up) == 9 and len(started) == 1  # Triton calls hooks


@pytest.mark.parametrize('current, looked_up', [(-1, False), (1, True)], ids=['current', 'other'])
def test_a_launch_is_on_the_gpu_of_its_tensors(monkeypatch, current, looked_up):
    """A known kernel is started as it is if that GPU is the current one. Triton launches on another one."""
    gpu = pytest.importorskip('mmattn.ops.gpu')
    if not hasattr(gpu.triton, 'knobs'):
        pytest.skip('Triton is older than 3.4')
    monkeypatch.setattr(gpu, 'KEEPS_LAUNCHES', True)
    monkeypatch.setattr(gpu, '_has_several_gpus', lambda: True)
    monkeypatch.setattr(torch.cuda, 'current_device', lambda: current)
    found = []
    monkeypatch.setattr(gpu, '_look_up', lambda *_: found.append('looked up'))
    x = torch.zeros(1)
    kernel, active = object(), SimpleNamespace(get_current_stream=lambda device: 0)
    monkeypatch.setattr(gpu.driver, '_active', active)
    known = lambda *_: found.append('known'), (1, 1, 1), (), ()
    monkeypatch.setattr(gpu, 'LAUNCHES', {(id(kernel), (1,), x.dtype, x.get_device()): known})
    gpu.run(kernel, (1,), x)
    assert found == ['looked up' if looked_up else 'known']


def zeros(*shape):
    return torch.zeros(shape)


TOKENS, MAP, HEADS = zeros(1, 2, 5, 4), zeros(1, 4, 4, 8), zeros(1, 4, 4, 2, 4)
#: operators and right arguments
RIGHT = {
    attention: dict(query=TOKENS, key=TOKENS, value=TOKENS),
    elsa.elsa_attention: dict(logits=zeros(1, 4, 4, 2, 9), value=MAP),
    neighbourhood_sum: dict(weights=zeros(1, 4, 4, 2, 9), value=MAP),
    content_attention: dict(query=HEADS, key=HEADS, value=HEADS),
    axial_attention: dict(query=HEADS, value=HEADS, table=zeros(7, 4), dim=1),
    mean_shift_attention: dict(query=TOKENS, key=TOKENS, value=TOKENS),
    mean_shift_by_landmarks: dict(query=TOKENS, key=TOKENS, value=TOKENS, landmarks=TOKENS),
    neighbourhood_attention: dict(query=HEADS, key=HEADS, value=HEADS, bias=None, kernel_size=3),
    shunted_attention: dict(query=MAP, keys=[zeros(1, 2, 2, 4)] * 2, values=[zeros(1, 2, 2, 4)] * 2, num_heads=2),
    window_attention: dict(x=zeros(1, 4, 4, 3, 8), table=zeros(9, 2), pad=None, window_size=2),
    grouped_conv: dict(x=MAP, weight=zeros(8, 4, 3, 3)),
    depthwise_conv: dict(x=MAP, weight=zeros(8, 1, 3, 3)),
}
#: of an operator, arguments that do not fit and what is said of them
WRONG = [
    # of all operators
    (elsa.elsa_attention, dict(value=MAP.int()), 'value must be floating-point numbers .*torch.int32'),
    (elsa.elsa_attention, dict(value=zeros(1, 4, 0, 4)), 'value must have no empty dimension but the first'),
    (elsa.elsa_attention, dict(ghost_mul=zeros(8, 3, 3).to('meta')), 'one device; .*value on cpu, ghost_mul on meta'),
    (elsa.elsa_attention, dict(dropout_p=float('nan')), 'dropout_p must be a number from 0 to 1, not nan'),
    (elsa.elsa_attention, dict(backend=['cpp']), r"backend must be None or one of reference, .*, not \['cpp'\]"),
    # of one
    (attention, dict(key=zeros(1, 2, 5, 3)), r'must be \(B, heads, N, d\), \(B, heads, M, d\) and'),
    (attention, dict(value=zeros(1, 2, 6, 4)), r'and \(B, heads, M, v\), not'),
    (elsa.elsa_attention, dict(logits=zeros(1, 4, 5, 2, 9)), 'same B, H and W'),
    (elsa.elsa_attention, dict(logits=zeros(1, 4, 4, 2, 8)), 'odd k, not 8'),
    (elsa.elsa_attention, dict(logits=zeros(1, 4, 4, 2, 16)), 'odd k, not 16'),
    (elsa.elsa_attention, dict(logits=zeros(1, 4, 4, 3, 9)), '8 channels of value do not divide into 3 heads'),
    (elsa.elsa_attention, dict(ghost_mul=zeros(4, 5, 5)), 'ghost_mul must be'),
    (elsa.elsa_attention, dict(ghost_add=zeros(2, 3, 3)), 'ghost_add must be'),
    (elsa.elsa_attention, dict(dilation=0), 'dilation must be a whole number of at least 1, not 0'),
    (neighbourhood_sum, dict(mul=zeros(3, 8, 9)), r'mul must be \(8, 9\) or \(1, 8, 9\), not \(3, 8, 9\)'),
    (content_attention, dict(key=HEADS[..., :2]), 'query and key must be'),
    (content_attention, dict(value=HEADS[:, :, :3]), 'query and key must be'),
    (axial_attention, dict(key=HEADS[..., :2]), r'key must be as query, \(1, 4, 4, 2, 4\), not'),
    (axial_attention, dict(query=zeros(1, 4, 5, 2, 4)), 'query must be'),
    (axial_attention, dict(table=zeros(6, 4)), r'table must be \(2L - 1, 4\), not \(6, 4\)'),
    (axial_attention, dict(table=zeros(7, 2)), 'table must be'),
    (axial_attention, dict(dim=0), 'dim must be 1 .columns. or 2 .rows., not 0'),
    (axial_attention, dict(beyond='clip'), "beyond must be .*, not 'clip'"),
    (axial_attention, dict(backend='cpp', softmax=True), "'cpp' has neither keys nor softmax along lines: choose"),
    (mean_shift_attention, dict(key=zeros(1, 2, 5, 5)), 'key and value'),
    (mean_shift_attention, dict(probe=zeros(1, 2, 4, 4)), 'probe must be'),
    (mean_shift_attention, dict(bias=zeros(1, 2, 5, 4)), 'bias must be'),
    (mean_shift_by_landmarks, dict(landmarks=zeros(1, 1, 3, 4)), r'landmarks must be \(B, heads, L, d\) of the keys'),
    (window_attention, dict(x=zeros(1, 4, 4, 2, 8)), r'x must be \(B, H, W, 3 or 4, C\)'),
    (window_attention, dict(table=zeros(9, 3)), 'the heads of table .* must divide C'),
    (window_attention, dict(table=zeros(25, 2)), 'table must have 9 rows for windows of 2, not 25'),
    (window_attention, dict(pad=zeros(8)), r'pad must be \(24\), not \(8,\)'),
    (window_attention, dict(shift=2), 'shift must be a whole number'),
    (neighbourhood_attention, dict(key=HEADS[..., :2]), r'must be \(B, H, W, heads, d\) of one shape'),
    (neighbourhood_attention, dict(key=None), r'query without key and value must be \(B, H, W, 3, heads, d\)'),
    (neighbourhood_attention, dict(bias=zeros(2, 3, 5)), r'bias must be \(2, 5, 5\), not \(2, 3, 5\)'),
    (neighbourhood_attention, dict(beyond=zeros(2, 3)), r'beyond must be \(2, 2, 4\), not \(2, 3\)'),
    (neighbourhood_attention, dict(kernel_size=4), 'kernel_size must be odd, not 4'),
    (neighbourhood_attention, dict(kernel_size=65), 'kernel_size must be a whole number from 1 to 63, not 65'),
    (neighbourhood_attention, dict(dilation=0), 'dilation must be a whole number of at least 1, not 0'),
    (shunted_attention, dict(num_heads=3), 'number of groups must divide 3 heads'),
    (shunted_attention, dict(values=[]), 'there are 0 values'),
    (shunted_attention, dict(query=zeros(1, 4, 8)), r'query must be \(B, H, W, C\)'),
    (shunted_attention, dict(keys=[zeros(1, 2, 3, 4)] * 2), r'C / 2\), not'),
    (grouped_conv, dict(x=zeros(1, 4, 5, 9)), r'x must be \(B, H, W, C\) and weight \(C, width, k, k\), not'),
    (grouped_conv, dict(weight=zeros(8, 4, 3, 5)), 'filters of weight must be k x k with odd k, not 3 x 5'),
    (grouped_conv, dict(weight=zeros(8, 4, 2, 2)), 'with odd k, not 2 x 2'),
    (grouped_conv, dict(weight=zeros(8, 3, 3, 3)), 'the 8 channels of x do not divide into groups of 3'),
    (grouped_conv, dict(bias=zeros(9)), r'bias must be \(8,\), not \(9,\)'),
    (grouped_conv, dict(dilation=0), 'dilation must be a whole number of at least 1, not 0'),
    (depthwise_conv, dict(x=zeros(1, 4, 5, 9)), r'x must be \(B, H, W, C\) and weight \(C, 1, k, k\), not'),
    (depthwise_conv, dict(weight=zeros(8, 1, 3, 5)), 'filters of weight must be k x k with odd k, not 3 x 5'),
    (depthwise_conv, dict(weight=zeros(8, 1, 2, 2)), 'with odd k, not 2 x 2'),
    (depthwise_conv, dict(bias=zeros(9)), r'bias must be \(8,\), not \(9,\)'),
]  # fmt: skip


@pytest.mark.parametrize(
    'operator, change, message', WRONG, ids=[f'{row[0].__name__} {i}' for i, row in enumerate(WRONG)]
)
def test_wrong_arguments_are_named(operator, change, message):
    """Each operator checks the shapes that it takes, and all of them dtypes, devices and rates."""
    operator(**RIGHT[operator])
    with pytest.raises(ValueError, match=message):
        operator(**{**RIGHT[operator], **change})


@pytest.mark.parametrize(
    'operator, name',
    [
        *((attention, name) for name in ('reference', 'fused')),
        *((elsa.elsa_attention, name) for name in ('reference', 'shifted', 'band', 'cpp')),
        *((mean_shift_attention, name) for name in ('reference', 'channels', 'exported', 'bias')),
        (neighbourhood_attention, 'reference'),
        *((shunted_attention, name) for name in ('reference', 'fused')),
    ],
)
def test_dropout(operator, name):
    """It drops weights: all of them at a rate of 1. At a lower rate, the others are larger, so that the mean of many
    runs is the result without dropout."""
    if name == 'cpp' and not library.HAS_LIBRARY:
        pytest.skip('the C++ code was not compiled')
    given = {key: x + 1 if isinstance(x, torch.Tensor) else x for key, x in RIGHT[operator].items()}
    if operator is shunted_attention:
        given |= {key: [x + 1 for x in given[key]] for key in ('keys', 'values')}
    without = operator(**given, backend=name)
    assert not operator(**given, dropout_p=1.0, backend=name).any()
    runs = torch.stack([operator(**given, dropout_p=0.5, backend=name) for _ in range(40)])
    assert not torch.allclose(runs[0], runs[1])
    torch.testing.assert_close(runs.mean(), without.mean(), atol=0.1, rtol=0)


@pytest.mark.parametrize('name', list(selftest.OPERATORS))
def test_operators_reach_the_checks(name):
    """A dtype that no operator takes, and a backend that none has."""
    if name == 'transposed map':
        pytest.skip('a copy takes every dtype')
    row = selftest.OPERATORS[name]
    inputs = [torch.zeros(shape) for shape in row.shapes(*SIZES)]
    with pytest.raises(ValueError, match="backend must be None or one of .*, not 'fast'"):
        row.compute(*inputs, backend='fast')
    with pytest.raises(ValueError, match='must be floating-point numbers'):
        row.compute(*(x.int() for x in inputs), backend=None)
