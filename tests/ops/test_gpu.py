"""Every backend of the operators on a GPU, at sizes of the models, beside the reference in float64 on the CPU."""

import pytest
import torch

from mmattn.ops import (
    axial_attention,
    content_attention,
    elsa_attention,
    mean_shift_attention,
    neighbourhood_attention,
    shunted_attention,
)
from mmattn.ops import elsa as elsa_ops
from mmattn.ops import global_self_attention as gsa_ops
from mmattn.ops import mean_shift as mean_shift_ops
from mmattn.ops import neighbourhood as neighbourhood_ops
from mmattn.ops import shunted as shunted_ops

DEVICE = 'cuda'
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU')

B, H, W, HEADS, D = 2, 33, 40, 4, 32
C, MAP = HEADS * D, (B, H, W)
#: name -> (function of tensors and a backend, its backends, shapes of the tensors)
OPERATORS = {
    'elsa': (elsa_attention, elsa_ops.BACKENDS, [(*MAP, HEADS, 49), (*MAP, C), (C, 7, 7), (C, 7, 7)]),
    'mean shift': (mean_shift_attention, mean_shift_ops.BACKENDS, [(B, HEADS, 300, 64)] * 4),
    'mean shift in windows': (
        mean_shift_attention,
        mean_shift_ops.BACKENDS,
        [*[(60, HEADS, 49, D)] * 4, (1, HEADS, 49, 49)],
    ),
    'shunted': (
        lambda query, k1, k2, v1, v2, backend: shunted_attention(query, [k1, k2], [v1, v2], HEADS, backend=backend),
        shunted_ops.BACKENDS,
        [(*MAP, C), *[(B, 9, 10, C // 2), (B, 17, 20, C // 2)] * 2],
    ),
    'neighbourhood': (
        lambda q, k, v, bias, backend: neighbourhood_attention(q, k, v, bias, 7, 2, backend=backend),
        neighbourhood_ops.BACKENDS,
        [*[(*MAP, HEADS, D)] * 3, (HEADS, 13, 13)],
    ),
    'content': (content_attention, gsa_ops.CONTENT_BACKENDS, [(*MAP, HEADS, 16)] * 3),
    'axial': (
        lambda query, value, table, backend: axial_attention(query, value, table, 1, backend=backend),
        gsa_ops.AXIAL_BACKENDS,
        [(*MAP, HEADS, 16), (*MAP, HEADS, 16), (63, 16)],
    ),
}
CPU_ONLY = {'reference', 'cpp'}
CASES = [
    (name, backend) for name, (_, backends, _) in OPERATORS.items() for backend in sorted(backends.keys() - CPU_ONLY)
]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('name, backend', CASES)
def test_backends_are_the_reference(name, backend, dtype):
    """Results and gradients, by the norm of their error. Inputs are rounded to the dtype for both."""
    operator, _, shapes = OPERATORS[name]
    exact = [(torch.randn(shape) / 2).to(dtype) for shape in shapes]
    results = []
    for device, to, path in (('cpu', torch.float64, 'reference'), (DEVICE, dtype, backend)):
        inputs = [x.to(device, to).requires_grad_() for x in exact]
        out = operator(*inputs, backend=path)
        upstream = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
        results.append([out, *torch.autograd.grad(out, inputs, upstream.to(out))])
    tolerance = max(1e-5, 4 * torch.finfo(dtype).eps)
    for expected, actual in zip(*results):
        assert actual.dtype == dtype
        assert (actual.double().cpu() - expected).norm() <= tolerance * expected.norm()
