"""Compare every backend of every operator that runs on a device with its reference: results and gradients.

    python -m mmattn.selftest [--device cuda] [--dtype bfloat16]

It prints a table, and ends with status 1 if a backend is wrong or fails. Differences are from the reference in float64
on the CPU, whose inputs are rounded to the same dtype.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import describe
from .ops import elsa, global_self_attention, mean_shift, neighbourhood, shunted
from .ops.aggregated_attention import BACKENDS as AGGREGATED
from .ops.aggregated_attention import PooledBias, aggregated_attention
from .ops.any_size import AVERAGE_POOL, average_pool
from .ops.attention import BACKENDS as ATTENTION
from .ops.attention import attention
from .ops.backend import CannotServe
from .ops.batch_norm import BACKENDS as BATCH_NORM
from .ops.batch_norm import batch_norm_relu
from .ops.depthwise_conv import BACKENDS as DEPTHWISE_CONV
from .ops.depthwise_conv import depthwise_conv
from .ops.gelu import BACKENDS as GELU
from .ops.gelu import gelu_linear
from .ops.grouped_conv import BACKENDS as GROUPED_CONV
from .ops.grouped_conv import grouped_conv
from .ops.layer_norm import BACKENDS as LAYER_NORM
from .ops.layer_norm import sum_and_norm
from .ops.transpose import BACKENDS as TRANSPOSE
from .ops.transpose import transposed
from .ops.window_attention import BACKENDS as WINDOW_ATTENTION
from .ops.window_attention import window_attention


class Operator(NamedTuple):
    """A row of :data:`OPERATORS`.

    Args:
        compute: a function of tensors and a backend.
        backends: its table of backends.
        shapes: of the tensors, from B, H, W, heads and channels of a head.
    """

    compute: Callable[..., Tensor]
    backends: dict[str, Callable[..., Tensor]]
    shapes: Callable[..., list[tuple[int, ...]]]


def bias_of(by_row: Tensor, width: int) -> PooledBias:
    """A bias of pooled tokens, (heads, H, h, W * w), with a number for each column of pixels and of tokens."""
    return PooledBias(by_row, torch.arange(by_row.shape[3], device=by_row.device).view(width, -1))


OPERATORS = {
    # the ghost head without its multiplier, and logits as the layer makes them for the kernels
    'elsa': Operator(
        lambda logits, value, add, backend: elsa.elsa_attention(
            logits.permute(0, 3, 4, 1, 2), value, None, add, backend=backend
        ),
        elsa.BACKENDS,
        lambda B, H, W, n, d: [(B, n, 49, H, W), (B, H, W, n * d), (n * d, 7, 7)],
    ),
    'elsa, both ghosts': Operator(
        elsa.elsa_attention,
        elsa.BACKENDS,
        lambda B, H, W, n, d: [(B, H, W, n, 49), (B, H, W, n * d), *[(n * d, 7, 7)] * 2],
    ),
    "elsa's logits": Operator(
        grouped_conv, GROUPED_CONV, lambda B, H, W, n, d: [(B, H, W, n * d), (n * d, 4, 7, 7), (n * d,)]
    ),
    'mean shift': Operator(
        mean_shift.mean_shift_attention, mean_shift.BACKENDS, lambda B, H, W, n, d: [(B, n, H * W, d)] * 4
    ),
    'mean shift of a projection': Operator(
        lambda x, backend: mean_shift.projected_mean_shift(x, 4, max(2, x.shape[-1] // 256), backend=backend),
        mean_shift.BACKENDS,
        lambda B, H, W, n, d: [(B, H * W, 4 * n * d)],
    ),
    'mean shift in windows': Operator(
        mean_shift.mean_shift_attention,
        mean_shift.BACKENDS,
        lambda B, H, W, n, d: [*[(B * (H * W // 49), n, 49, d)] * 4, (1, n, 49, 49)],
    ),
    'windows': Operator(
        lambda x, table, pad, backend: window_attention(x, table, pad, 7, 2, backend=backend),
        WINDOW_ATTENTION,
        lambda B, H, W, n, d: [(B, H, W, 3, n * d), (169, n), (3 * n * d,)],
    ),
    "windows of MSF's maps": Operator(
        lambda x, table, backend: window_attention(x, table, None, 7, 3, gauss=True, backend=backend),
        WINDOW_ATTENTION,
        lambda B, H, W, n, d: [(B, H, W, 4, n * d), (169, n)],
    ),
    'plain': Operator(attention, ATTENTION, lambda B, H, W, n, d: [(B, n, H * W, d)] * 3),
    'shunted': Operator(
        lambda query, k1, k2, v1, v2, backend: shunted.shunted_attention(
            query, [k1, k2], [v1, v2], max(2, query.shape[-1] // 32), backend=backend
        ),
        shunted.BACKENDS,
        lambda B, H, W, n, d: [
            (B, H, W, n * d),
            *[(B, H // 4, W // 4, n * d // 2), (B, H // 2, W // 2, n * d // 2)] * 2,
        ],
    ),
    'neighbourhood': Operator(
        lambda qkv, bias, backend: neighbourhood.neighbourhood_attention(qkv, None, None, bias, 7, 2, backend=backend),
        neighbourhood.BACKENDS,
        lambda B, H, W, n, d: [(B, H, W, 3, n, d), (n, 13, 13)],
    ),
    'neighbours and pooled tokens': Operator(
        lambda q, kv, pooled, temperature, embedding, bias, by_row, *tokens, backend: aggregated_attention(
            *(q, kv, pooled, temperature, embedding, bias, bias_of(by_row, q.shape[2]), *tokens), backend=backend
        ),
        AGGREGATED,
        lambda B, H, W, n, d: [
            *[(B, H, W, n, d), (B, H, W, 2, n, d), (B, H // 4, W // 4, 2, n, d), (n,), (n, d), (n, 9)],
            *[(n, H, H // 4, W * (W // 4)), (n, d, 9), (n, 9)],
        ],
    ),
    'content': Operator(
        global_self_attention.content_attention,
        global_self_attention.CONTENT_BACKENDS,
        lambda B, H, W, n, d: [(B, H, W, n, d)] * 3,
    ),
    'columns, norm, rows and content': Operator(
        global_self_attention.projected_attention,
        global_self_attention.PROJECTED_BACKENDS,
        lambda B, H, W, n, d: [(B, H, W, 3, n, d), (2 * H - 3, d), (2 * W - 3, d), *[(n * d,)] * 2],
    ),
    **{
        f'axial, along {lines}': Operator(
            lambda query, value, table, backend, dim=dim: global_self_attention.axial_attention(
                query, value, table, dim, backend=backend
            ),
            global_self_attention.AXIAL_BACKENDS,
            lambda B, H, W, n, d, dim=dim: [*[(B, H, W, n, d)] * 2, (2 * (H, W)[dim - 1] - 3, d)],
        )
        for dim, lines in ((1, 'columns'), (2, 'rows'))
    },
    'axial, along rows, and content': Operator(
        lambda query, value, table, context, backend: global_self_attention.axial_attention(
            query, value, table, 2, backend=backend, context=context
        ),
        global_self_attention.AXIAL_BACKENDS,
        lambda B, H, W, n, d: [*[(B, H, W, n, d)] * 2, (2 * W - 3, d), (B, n, d, d)],
    ),
    'depth-wise convolution': Operator(
        depthwise_conv, DEPTHWISE_CONV, lambda B, H, W, n, d: [(B, H, W, n * d), (n * d, 1, 3, 3), (n * d,)]
    ),
    'depth-wise convolution, sum and GELU': Operator(
        partial(depthwise_conv, skip=True, gelu=True),
        DEPTHWISE_CONV,
        lambda B, H, W, n, d: [(B, H, W, n * d), (n * d, 1, 3, 3), (n * d,)],
    ),
    'depth-wise convolution, GELU and gate': Operator(
        partial(depthwise_conv, gelu=True, gated=True),
        DEPTHWISE_CONV,
        lambda B, H, W, n, d: [(B, H, W, 2 * n * d), (n * d, 1, 3, 3), (n * d,)],
    ),
    'norm and ReLU': Operator(batch_norm_relu, BATCH_NORM, lambda B, H, W, n, d: [(B, H, W, n * d), *[(n * d,)] * 2]),
    'norm, sum and ReLU': Operator(
        batch_norm_relu, BATCH_NORM, lambda B, H, W, n, d: [(B, H, W, n * d), *[(n * d,)] * 2, (B, H, W, n * d)]
    ),
    'sum and layer norm': Operator(
        lambda x, branch, *scale, backend: torch.stack(sum_and_norm(x, branch, *scale, backend=backend)),
        LAYER_NORM,
        lambda B, H, W, n, d: [*[(B, H, W, n * d)] * 2, *[(n * d,)] * 2],
    ),
    'GELU and linear layer': Operator(
        gelu_linear, GELU, lambda B, H, W, n, d: [(B, H, W, n * d), (n * d,), (d, n * d), (d,)]
    ),
    'transposed map': Operator(transposed, TRANSPOSE, lambda B, H, W, n, d: [(B, H * W, n * d)]),
    'average pooling': Operator(
        lambda x, backend: average_pool(x.permute(0, 3, 1, 2), backend),
        AVERAGE_POOL,
        lambda B, H, W, n, d: [(B, H, W, n * d)],
    ),
}
DTYPES = torch.float32, torch.bfloat16, torch.float16
#: B, H, W, heads and channels of a head
SIZES = 2, 17, 21, 2, 32


class Row(NamedTuple):
    """What :func:`check_backends` found of a backend.

    Args:
        differences: of the result and, the largest one, of the gradients, as a share of their norm.
        problem: why there are none; '' if there are.
    """

    operator: str
    backend: str
    dtype: torch.dtype
    differences: tuple[float, ...]
    problem: str

    @property
    def passed(self) -> bool:
        return not self.problem and all(difference <= tolerance(self.dtype) for difference in self.differences)


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference that passes: some rounding steps, because gradients are rounded between two kernels."""
    return max(1e-5, 4 * torch.finfo(dtype).eps)


def candidates(operator: str) -> list[str]:
    """Names of the backends of an operator; of several names of one function the first."""
    backends = OPERATORS[operator].backends
    first = {function: name for name, function in reversed(backends.items())}
    return [name for name in backends if name in first.values()]


def check_backends(
    device: str = 'cpu', dtypes: Sequence[torch.dtype] | None = None, sizes: Sequence[int] = SIZES
) -> Iterator[Row]:
    """Compare backends with the reference, one after the other.

    Args:
        device: 'cpu' or 'cuda'.
        dtypes: of the tensors; None: :data:`DTYPES`, but on the CPU no float16, which torch 2.1 cannot compute there.
        sizes: B, H, W, heads and channels of a head.

    Yields:
        a row for each operator, dtype and backend that takes such tensors.
    """
    if dtypes is None:
        dtypes = [dtype for dtype in DTYPES if device != 'cpu' or dtype != torch.float16]
    for operator, dtype in itertools.product(OPERATORS, dtypes):
        for backend in candidates(operator):
            torch._dynamo.reset()  # torch compiles a function for a few shapes only
            try:
                yield Row(operator, backend, dtype, differences(operator, backend, device, dtype, sizes), '')
            except CannotServe:
                continue
            except Exception as error:  # compilers and drivers raise many kinds
                yield Row(operator, backend, dtype, (), describe(error)[:200])


def differences(
    operator: str, backend: str, device: str, dtype: torch.dtype, sizes: Sequence[int] = SIZES
) -> tuple[float, float]:
    """Differences of a backend from the reference: of the result, and the largest of the gradients."""
    compute, _, shapes = OPERATORS[operator]
    generator = torch.Generator().manual_seed(0)
    exact = [(torch.randn(shape, generator=generator) / 2).to(dtype) for shape in shapes(*sizes)]
    results = []
    for where, to, path in (('cpu', torch.float64, 'reference'), (device, dtype, backend)):
        inputs = [x.to(where, to).requires_grad_() for x in exact]
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # else convolutions of float32 have 10 bits
            out = compute(*inputs, backend=path)
            # Rounded for both, because its sums over pixels nearly cancel.
            upstream = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(dtype)
            results.append([out, *torch.autograd.grad(out, inputs, upstream.to(out))])
    shares = [
        ((actual.double().cpu() - wanted).norm() / wanted.norm()).item()
        for wanted, actual in zip(*results, strict=True)
    ]
    return shares[0], max(shares[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    names = {str(dtype).removeprefix('torch.'): dtype for dtype in DTYPES}
    parser.add_argument('--dtype', choices=names, help='of the tensors (default: all)')
    args = parser.parse_args(arguments)
    chosen = dict(dtypes=[names[args.dtype]]) if args.dtype else {}
    if not all(row.passed for row in printed(check_backends(args.device, **chosen))):
        sys.exit('A backend FAILED: see the table. Another one serves after model.backbone.set_backend(NAME).')


def printed(rows: Iterable[Row]) -> list[Row]:
    """Print rows as a table, each as it comes."""
    print('| operator | backend | dtype | result | gradients | tolerance | |\n|---|---|---|---|---|---|---|')
    kept = []
    for row in rows:
        kept.append(row)
        found = [f'{difference:.1e}' for difference in row.differences] or [row.problem, '']
        dtype, verdict = str(row.dtype).removeprefix('torch.'), 'passed' if row.passed else 'FAILED'
        print('|', ' | '.join([row.operator, row.backend, dtype, *found, f'{tolerance(row.dtype):.1e}', verdict]), '|')
        sys.stdout.flush()
    return kept


if __name__ == '__main__':
    main()
