"""Compile the Triton kernels for GPUs that need not be here, and print what they take as a Markdown table.

    python tools/dev/triton_report.py [--arch 90] [--dtype bfloat16] [--case 'GSA, 16 channels'] [--json]

Options may be repeated. Every launch of a forward and a backward pass is compiled instead of run. Registers and spills
(stores and loads, in bytes) are per thread, shared memory (in bytes) is per program. Tried with Triton 3.6.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.pop('TRITON_INTERPRET', None)  # Triton reads it when it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402

from mmattn.ops.aggregated_attention.triton import aggregated_attention_triton  # noqa: E402
from mmattn.ops.batch_norm.triton import NormReLU  # noqa: E402
from mmattn.ops.depthwise_conv.triton import depthwise_conv_triton  # noqa: E402
from mmattn.ops.elsa.triton import elsa_attention_triton  # noqa: E402
from mmattn.ops.gelu.triton import GELULinear  # noqa: E402
from mmattn.ops.global_self_attention.triton import axial_attention_triton  # noqa: E402
from mmattn.ops.global_self_attention.triton_content import content_context_triton  # noqa: E402
from mmattn.ops.global_self_attention.triton_projected import projected_attention_triton  # noqa: E402
from mmattn.ops.layer_norm.triton import SumAndNorm  # noqa: E402
from mmattn.ops.mean_shift.triton import projected_mean_shift_triton  # noqa: E402
from mmattn.ops.neighbourhood.tensor_cores import neighbourhood_attention_products  # noqa: E402
from mmattn.ops.neighbourhood.triton import neighbourhood_attention_triton  # noqa: E402
from mmattn.ops.triton_maps import average_pool_triton, transposed_triton  # noqa: E402
from mmattn.ops.window_attention.triton import window_attention_triton  # noqa: E402

#: compute capabilities: Turing, Ampere, Hopper, Blackwell
ARCHS = (75, 80, 90, 100)
DTYPES = ('float32', 'bfloat16', 'float16')
#: channels of a head, sides of maps: GSA-R50 at 512 x 512
GSA = ((16, 128), (32, 64), (64, 32))


def norm(dtype: torch.dtype, with_shortcut: bool) -> Tensor:
    """The last norm of a block of GSA-R50 in training."""
    x, shortcut = (empty(dtype, 2, 50, 50, 512) for _ in range(2))
    batch_norm = torch.nn.BatchNorm2d(512)
    parameters = batch_norm.weight, batch_norm.bias
    return NormReLU(x, shortcut if with_shortcut else None, *parameters, batch_norm.eps, norm=batch_norm)(x)


def layer_norm(dtype: torch.dtype, channels: int) -> Tensor:
    """The sum with a branch, and the norm of it, of transformer blocks in mixed precision."""
    x, kept = empty(torch.float32, 2, 50, 50, channels), torch.ones(2)
    scale = empty(torch.float32, 2, channels)
    return torch.cat(SumAndNorm.apply(x, empty(dtype, *x.shape), *scale, kept, 1e-5, 0.1, dtype))


def gelu(dtype: torch.dtype) -> Tensor:
    """The hidden map of an MLP."""
    parameters = empty(torch.float32, 384), empty(torch.float32, 96, 384), empty(torch.float32, 96)
    return GELULinear.apply(empty(dtype, 2, 50, 50, 384), *parameters)


def elsa(dtype: torch.dtype, k: int, ghosts: str) -> Tensor:
    """ELSA's operator with the 32 channels a head that all models have."""
    heads, d = 3, 32
    mul, add = (empty(dtype, heads * d, k, k) if part in ghosts else None for part in ('mul', 'add'))
    logits = empty(dtype, 2, heads, k * k, 50, 50).permute(0, 3, 4, 1, 2)  # as the layer makes them
    return elsa_attention_triton(logits, empty(dtype, 2, 50, 50, heads * d), mul, add)


def gsa(dtype: torch.dtype, channels: int, length: int) -> Tensor:
    """GSA's attention along columns, with the norm of inference and without, along rows, and to the content. Of float16
    maps, results are float32, as under autocast."""
    query, value, key = empty(dtype, 2, length, length, 3, 8, channels).unbind(3)
    table = empty(torch.float32, 2 * length - 1, channels)
    along = partial(axial_attention_triton, query, dtype=torch.float32 if dtype == torch.float16 else dtype)
    with torch.no_grad():
        along(value, table, 1, norm=(*empty(torch.float32, 4, 8 * channels), 1e-5))
    return along(along(value, table, 1), table, 2, content_context_triton(key, value))


def gsa_step(dtype: torch.dtype, channels: int, length: int) -> Tensor:
    """The same as one function, in training."""
    table, scale = empty(torch.float32, 2 * length - 1, channels), empty(torch.float32, 2, 8 * channels)
    maps, out = empty(dtype, 2, length, length, 3, 8, channels), torch.float32 if dtype == torch.float16 else dtype
    return projected_attention_triton(maps, table, table, *scale, 1e-5, None, out)


def depthwise(dtype: torch.dtype, k: int, gated: bool = False) -> Tensor:
    """The hidden map of a Shunted Transformer's feed-forward layer, or of TransNeXt's."""
    x, weight = empty(dtype, 2, 50, 50, 512 * (1 + gated)), empty(torch.float32, 512, 1, k, k)
    return depthwise_conv_triton(x, weight, empty(torch.float32, 512), skip=not gated, gelu=True, gated=gated)


def pooled_and_transposed(dtype: torch.dtype) -> Tensor:
    """A map of GSA-R50."""
    return transposed_triton(average_pool_triton(empty(dtype, 2, 50, 50, 512)).flatten(1, 2))


def mean_shift(dtype: torch.dtype, channels: int) -> Tensor:
    """The attention of MSF-ViT."""
    return projected_mean_shift_triton(empty(dtype, 2, 1024, 4 * 6 * channels), 4, 6)


def neighbourhood(dtype: torch.dtype, k: int, with_bias: bool, products: bool = False) -> Tensor:
    """NAT's operator with the 32 channels a head that all models have."""
    heads = 2
    maps = empty(dtype, 2, 50, 50, 3, heads, 32)
    bias = empty(torch.float32, heads, 2 * k - 1, 2 * k - 1) if with_bias else None
    if products:
        return neighbourhood_attention_products(maps, bias, None, k, 2)
    return neighbourhood_attention_triton(*maps.unbind(3), bias, None, k, 2)


def aggregated(dtype: torch.dtype, channels: int, pools: int) -> Tensor:
    """TransNeXt's operator."""
    side, heads = 8 * pools, 3
    maps = [empty(dtype, 2, *size, heads, channels) for size in ((side, side), (side, side, 2), (pools, pools, 2))]
    shapes = (heads,), (heads, channels), (heads, 9), (heads, channels, 9), (heads, 9)
    parameters = [empty(torch.float32, *shape) for shape in shapes]
    return aggregated_attention_triton(*maps, *parameters, empty(dtype, heads, side, pools, side, pools))


def windows(dtype: torch.dtype, w: int, parts: int) -> Tensor:
    """Swin's shifted windows, or MSF-Swin's, of heads of 32 channels as all models have."""
    heads, d = 3, 32  # so many windows that a program has several
    x, table = empty(dtype, 2, 230, 230, parts, heads * d), empty(torch.float32, (2 * w - 1) ** 2, heads)
    pad = None if parts == 4 else empty(torch.float32, parts * heads * d)
    return window_attention_triton(x, table, pad, w, w // 2, True, parts == 4)


def empty(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=True)


#: name -> operator; the released models have 7 x 7 neighbours and the ghost head
CASES = {
    f'{k} x {k}, ghost {ghosts}': partial(elsa, k=k, ghosts=ghosts)
    for k, ghosts in ((7, 'add'), (7, 'none'), (7, 'mul + add'), (5, 'add'), (3, 'add'))
}
CASES |= {'7 x 7 attention': partial(neighbourhood, k=7, with_bias=True)}
CASES |= {'7 x 7 attention, no bias': partial(neighbourhood, k=7, with_bias=False)}
CASES |= {'norm and ReLU': partial(norm, with_shortcut=False), 'norm, sum and ReLU': partial(norm, with_shortcut=True)}
CASES |= {f'sum and norm, {C} channels': partial(layer_norm, channels=C) for C in (96, 512, 2048)}
CASES |= {'GELU and linear layer': gelu}
CASES |= {
    'depth-wise, 3 x 3': partial(depthwise, k=3),
    'depth-wise and gate, 3 x 3': partial(depthwise, k=3, gated=True),
}
CASES |= {'pooled and transposed': pooled_and_transposed}
#: kernels with products of matrices: 16 bits, on GPUs with tensor cores for them
PRODUCTS = {f'GSA, {channels} channels': partial(gsa, channels=channels, length=A) for channels, A in GSA}
PRODUCTS |= {
    f'GSA in training, {channels} channels': partial(gsa_step, channels=channels, length=A) for channels, A in GSA
}
PRODUCTS |= {f'mean shift, {channels} channels': partial(mean_shift, channels=channels) for channels in (64, 32)}
PRODUCTS |= {
    f'{k} x {k} attention, products{note}': partial(neighbourhood, k=k, with_bias=not note, products=True)
    for k, note in ((7, ''), (7, ', no bias'), (13, ''))
}
PRODUCTS |= {
    f'neighbours and {pools}² pooled tokens, {channels} channels': partial(aggregated, channels=channels, pools=pools)
    for channels, pools in ((24, 16), (24, 7), (32, 16))
}
PRODUCTS |= {'mean shift in windows': partial(windows, w=7, parts=4)}
PRODUCTS |= {f'windows, {w} x {w}': partial(windows, w=w, parts=3) for w in (7, 12)}
CASES |= PRODUCTS


def report(archs: Sequence[int], dtypes: Sequence[str], cases: Sequence[str]) -> list[dict]:
    """A row of figures for each kernel in each setting that it is for."""
    rows = []
    for arch, dtype, case in itertools.product(archs, dtypes, cases):
        if case in PRODUCTS and (arch < 80 or dtype == 'float32'):
            continue
        for name, kernel in launched(arch, partial(CASES[case], getattr(torch, dtype))):
            figures = dict(assembled(kernel.asm['ptx'], arch), shared=kernel.metadata.shared)
            rows.append(dict(kernel=name, arch=arch, dtype=dtype, case=case, **figures))
    return rows


def launched(arch: int, operator: Callable[[], Tensor]) -> list[tuple]:
    """Names and kernels that the forward and the backward pass of an operator launch, compiled for ``arch``."""
    kernels = []
    run = triton.runtime.JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        kernels.append((kernel.name + (' (reverse)' if kwargs.get('REVERSE') else ''), kernel))

    no_device(arch)
    with mock.patch('triton.runtime.JITFunction.run', compiled), mock.patch('mmattn.ops.gpu.KEEPS_LAUNCHES', False):
        operator().sum().backward()
    return kernels


def no_device(arch: int) -> None:
    """Makes Triton believe that there is a GPU."""
    target = GPUTarget('cuda', arch, 32)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: arch, get_current_stream=lambda _: 0, get_current_target=lambda: target
        )
    )


def assembled(ptx: str, arch: int) -> dict[str, int]:
    """What ptxas says of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'kernel.ptx')
        path.write_text(ptx, 'utf-8')
        target = re.search(r'^\.target (\w+)', ptx, re.MULTILINE)[1]
        command = [get_ptxas(arch).path, '-v', f'--gpu-name={target}', path, '-o', path.with_suffix('.cubin')]
        said = subprocess.run(command, check=True, capture_output=True, encoding='utf-8', errors='replace').stderr
    figure = lambda pattern: int((re.search(rf'(\d+) {pattern}', said) or [0, 0])[1])
    return dict(registers=figure('registers'), spills=figure('bytes spill stores') + figure('bytes spill loads'))


def table(rows: list[dict]) -> str:
    lines = [list(rows[0]), ['---'] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', type=int, action='append', help=f'compute capability; by default {ARCHS}')
    parser.add_argument('--dtype', choices=DTYPES, action='append')
    parser.add_argument('--case', choices=CASES, action='append')
    parser.add_argument('--json', action='store_true', help='print JSON instead of the table')
    args = parser.parse_args()
    rows = report(args.arch or ARCHS, args.dtype or DTYPES, args.case or list(CASES))
    print(json.dumps(rows) if args.json else table(rows))
