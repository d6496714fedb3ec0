"""Compile the Triton kernels for GPUs that need not be here, and print what they take as a Markdown table.

    python tools/dev/triton_report.py [--arch 90] [--dtype bfloat16] [--kernel-size 7] [--ghost add] [--json]

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
from pathlib import Path
from types import SimpleNamespace

os.environ.pop('TRITON_INTERPRET', None)  # Triton reads it when it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402

from mmattn.ops.elsa_triton import elsa_attention_triton  # noqa: E402

#: compute capabilities: Turing, Ampere, Hopper, Blackwell
ARCHS = (75, 80, 90, 100)
DTYPES = ('float32', 'bfloat16', 'float16')
#: parts of the ghost head; the released models have 'add'
GHOSTS = ('', 'add', 'mul', 'mul+add')


def report(archs=ARCHS, dtypes=DTYPES, kernel_sizes=(7,), ghosts=('add',), head_dim: int = 32) -> list[dict]:
    """A row of figures for each kernel in each setting."""
    rows = []
    for arch, dtype, k, ghost in itertools.product(archs, dtypes, kernel_sizes, ghosts):
        for name, kernel in launched(arch, getattr(torch, dtype), k, ghost, head_dim):
            figures = dict(assembled(kernel.asm['ptx'], arch), shared=kernel.metadata.shared)
            rows.append(dict(kernel=name, arch=arch, dtype=dtype, k=k, ghost=ghost, **figures))
    return rows


def launched(arch: int, dtype: torch.dtype, k: int, ghost: str, head_dim: int) -> list[tuple]:
    """Names and kernels that a forward and a backward pass launch, compiled for ``arch``."""
    kernels = []
    run = triton.runtime.JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        kernels.append((kernel.name + (' (reverse)' if kwargs.get('REVERSE') else ''), kernel))

    no_device(arch)
    triton.runtime.JITFunction.run = compiled
    try:
        heads, size = 3, (2, 50, 50)
        empty = lambda *shape: torch.empty(shape, dtype=dtype, requires_grad=True)
        mul, add = (empty(heads * head_dim, k, k) if part in ghost.split('+') else None for part in ('mul', 'add'))
        logits = empty(2, heads, k * k, 50, 50).permute(0, 3, 4, 1, 2)  # as the layer makes them
        elsa_attention_triton(logits, empty(*size, heads * head_dim), mul, add).sum().backward()
    finally:
        triton.runtime.JITFunction.run = run
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
        path.write_text(ptx)
        target = re.search(r'^\.target (\w+)', ptx, re.MULTILINE)[1]
        command = [get_ptxas(arch).path, '-v', f'--gpu-name={target}', path, '-o', path.with_suffix('.cubin')]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    figure = lambda pattern: int((re.search(rf'(\d+) {pattern}', said) or [0, 0])[1])
    return dict(registers=figure('registers'), spills=figure('bytes spill stores') + figure('bytes spill loads'))


def table(rows: list[dict]) -> str:
    lines = [list(rows[0]), ['---'] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, to, default in (
        ('arch', int, ARCHS),
        ('dtype', str, DTYPES),
        ('kernel-size', int, (7,)),
        ('ghost', str, ('add',)),
    ):
        parser.add_argument(f'--{option}', type=to, action='append', help=f'by default {default}')
    parser.add_argument('--json', action='store_true', help='print JSON instead of the table')
    args = parser.parse_args()
    rows = report(args.arch or ARCHS, args.dtype or DTYPES, args.kernel_size or (7,), args.ghost or ('add',))
    print(json.dumps(rows) if args.json else table(rows))
