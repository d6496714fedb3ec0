"""Each operator beside a plain statement, and beside compiled MMCV where there is one."""

import importlib.util
import sys

import pytest
import torch

from tests import ROOT

ops = pytest.importorskip('mmcv.ops', reason='MMCV has no operators at all', exc_type=ImportError)

from .cases import CASES  # noqa: E402, needs mmcv.ops

FILE = ROOT / 'projects' / 'mmcv_ops' / 'beside_mmcv' / '_ext.py'
COMPILED = not sys.modules['mmcv._ext'].__file__.endswith('.py')


@pytest.fixture
def stand_in(monkeypatch):
    """Let mmcv.ops call the stand-in in the rest of a test, and return it."""
    spec = importlib.util.spec_from_file_location('stand_in', FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def use():
        for name, part in list(sys.modules.items()):
            if name.startswith('mmcv.ops.') and hasattr(part, 'ext_module'):
                monkeypatch.setattr(part, 'ext_module', module)

    use.module = module
    return use


def results(call, tensors, dtype, differentiable):
    """What a call returns, and then the gradients of a weighted sum of it, in float64."""
    floats = [name for name, value in tensors.items() if value.is_floating_point()]
    given = tensors | {name: tensors[name].to(dtype, copy=True) for name in floats}
    if not differentiable:
        found = call(**given)
        return [part.double() for part in (found if isinstance(found, (tuple, list)) else [found])]
    for name in floats:
        given[name].requires_grad_()
    output = call(**given)
    factors = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    if output.requires_grad:
        (output * factors).sum().backward()
    parts = [given[name] for name in floats if name != 'rois']
    gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
    return [output.detach().double(), *(gradient.double() for gradient in gradients)]


def same(found, expected, dtype):
    """Compare with a tolerance relative to the largest element. In 16 bits, some samples are in another pixel."""
    assert len(found) == len(expected)
    tolerance, others = {torch.float64: (1e-9, 0), torch.float32: (1e-5, 0)}.get(dtype, (2e-2, 0.05))
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        close = (one - other).abs() <= tolerance * max([1, *other.abs().flatten().tolist()])
        assert (~close).sum() <= others * close.numel(), (one, other)


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_an_operator_is_what_it_is_stated_to_be(name, dtype, stand_in):
    """Results and gradients of mmcv.ops with the stand-in are those of the plain statement."""
    case = CASES[name]
    tensors = {key: value.to(dtype) if value.is_floating_point() else value for key, value in case.tensors().items()}
    expected = results(case.plain, tensors, torch.float64, case.differentiable)
    stand_in()
    same(results(case.run, tensors, dtype, case.differentiable), expected, dtype)


def test_compiled_graphs_are_right(stand_in):
    """torch.compile does not trace the operators, in which it loses what is written to tensors."""
    case = CASES['RoIAlign']
    tensors = case.tensors()
    stand_in()
    expected = results(case.run, tensors, torch.float32, True)
    same(results(torch.compile(case.run, backend='eager'), tensors, torch.float32, True), expected, torch.float32)


@pytest.mark.parametrize('name', ['DeformConv2dPack', 'ModulatedDeformConv2dPack'])
def test_autocast(name, stand_in):
    """Convolutions compute in 16 bits, and the weights get gradients in their own dtype."""
    module, x = getattr(ops, name)(4, 6, 3, padding=1), torch.randn(2, 4, 9, 7)
    torch.nn.init.normal_(module.conv_offset.weight, std=0.1)
    stand_in()
    expected = module(x)
    with torch.autocast('cpu', torch.bfloat16):
        found = module(x)
    assert found.dtype is torch.bfloat16
    same([found.double()], [expected.double()], torch.bfloat16)
    found.sum().backward()
    assert {part.grad.dtype for part in module.parameters()} == {torch.float32}


@pytest.mark.skipif(not COMPILED, reason='MMCV is not compiled here')
@pytest.mark.parametrize('name', [name for name, case in CASES.items() if case.cpu])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16], ids=str)
def test_an_operator_is_that_of_compiled_mmcv(name, dtype, stand_in):
    """Results and gradients are those of compiled MMCV, in each dtype that it has on the CPU."""
    case = CASES[name]
    tensors = case.tensors()
    try:
        expected = results(case.run, tensors, dtype, case.differentiable)
    except RuntimeError as error:
        pytest.skip(f'compiled MMCV does not compute this: {error}')
    stand_in()
    same(results(case.run, tensors, dtype, case.differentiable), expected, dtype)
