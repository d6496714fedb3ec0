"""Every backend of the operators on a GPU, beside the reference in float64 on the CPU."""

import pytest
import torch

from mmattn import selftest
from mmattn.ops.backend import CannotServe
from tests.gpu import DEVICE, needs_gpu

SIZES = (2, 33, 40, 4, 32) if DEVICE == 'cuda' else (1, 7, 8, 2, 8)


@needs_gpu
@pytest.mark.parametrize('dtype', selftest.DTYPES, ids=str)
def test_backends_are_the_reference(dtype):
    """Results and gradients, by the norm of their error."""
    rows = list(selftest.check_backends(DEVICE, [dtype], SIZES))
    assert {row.operator for row in rows} == set(selftest.OPERATORS)
    assert not [row for row in rows if not row.passed]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='there are no two GPUs')
@pytest.mark.parametrize('name', [name for name, row in selftest.OPERATORS.items() if 'triton' in row.backends])
def test_the_second_gpu(name):
    """Kernels run on the GPU of their tensors, which need not be the current one."""
    compute, _, shapes = selftest.OPERATORS[name]
    inputs = [torch.randn(shape).half() for shape in shapes(*SIZES)]
    expected = compute(*(x.double() for x in inputs), backend='reference')
    try:
        out = compute(*(x.to('cuda:1') for x in inputs), backend='triton')
    except CannotServe:
        pytest.skip('not for the kernels')
    assert (out.double().cpu() - expected).norm() <= selftest.tolerance(torch.half) * expected.norm()
