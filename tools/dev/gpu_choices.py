"""Time kernels on a GPU with other numbers of registers, warps, stages and rows than they have, and name the fastest.

    python tools/dev/gpu_choices.py [--device cpu]

The first setting of a kernel is its own. Results and gradients with the others must agree with its results. --device
cpu goes through all launches and computes nothing.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import torch
from gpu_operators import DRY_SIZES, MAPS, kernel_times
from triton import knobs
from triton import language as tl
from triton.runtime import Autotuner, JITFunction

from mmattn.errors import describe
from mmattn.ops import gpu
from mmattn.ops.batch_norm import triton as batch_norm
from mmattn.ops.depthwise_conv import triton as depthwise_conv
from mmattn.ops.global_self_attention import triton as axial
from mmattn.ops.mean_shift import triton as mean_shift
from mmattn.ops.neighbourhood import tensor_cores
from mmattn.ops.window_attention import triton as windows
from mmattn.selftest import OPERATORS, tolerance


class Choice(NamedTuple):
    operator: str  # of selftest.py
    module: ModuleType
    kernel: str  # '': all of the module
    others: tuple[dict[str, int], ...]  # constants of the module and arguments of a launch in place of its own


DTYPE = torch.bfloat16
#: instead of 168 registers
REGISTERS = dict(maxnreg=128), dict(maxnreg=255)
#: LINES and SIDE of attention along lines are 16; ``times`` is by what its warps are multiplied
CHOICES = (
    *(
        Choice('axial, along columns', axial, kernel, (dict(num_stages=1), dict(num_stages=3)))
        for kernel in ('_axial', '_axial_query_gradient', '_axial_value_gradient', '_axial_table_gradient')
    ),
    Choice(
        'axial, along columns',
        axial,
        '',
        (dict(LINES=32, times=2), dict(LINES=32, times=1), dict(SIDE=32, LINES=32, times=4)),
    ),
    Choice(
        'depth-wise convolution, sum and GELU',
        depthwise_conv,
        '_depthwise_gradient',
        (dict(CHANNELS=32, num_warps=4), dict(CHANNELS=32, num_warps=2), dict(CHANNELS=16, num_warps=1)),
    ),
    *(
        Choice("windows of MSF's maps", windows, kernel, (*REGISTERS, dict(num_warps=8, maxnreg=128)))
        for kernel in ('_windows_gradient', '_windows')
    ),
    Choice('neighbourhood', tensor_cores, '_products', (dict(num_stages=3), dict(ROWS=4), dict(ROWS=1))),
    Choice('neighbourhood', tensor_cores, '_products_query_gradient', (dict(num_stages=3), dict(maxnreg=168))),
    Choice('neighbourhood', tensor_cores, '_products_key_gradient', (*REGISTERS, dict(ROWS=2), dict(num_stages=3))),
    *(
        Choice('norm, sum and ReLU', batch_norm, kernel, (dict(maxnreg=32), dict(maxnreg=128)))
        for kernel in ('_norm_statistics', '_norm_relu', '_norm_relu_sums', '_norm_relu_gradient')
    ),
    Choice('mean shift of a projection', mean_shift, '_mean_shift_key_gradient', REGISTERS),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    if parser.parse_args().device == 'cpu':
        rehearse()
        return
    print(f'| operator | kernel | setting | microseconds of maps | its time / own | |\n|{"---|" * 6}')
    good = [compare(choice) for choice in CHOICES]
    if not all(good):
        sys.exit('A setting FAILED: see the table.')


def rehearse() -> None:
    """Launches with all settings on a GPU that is not here, without compiling kernels."""
    from gpu_kernels import operators

    with mock.patch.object(knobs.runtime, 'jit_cache_hook', lambda **_: True):
        for choice in CHOICES:
            for setting in choice.others:
                print(choice.operator, choice.kernel, setting, flush=True)
                with launched_with(choice, setting):
                    operators([(choice.operator, DRY_SIZES)], DTYPE)


def compare(choice: Choice) -> bool:
    """Print the times of a kernel's settings. Returns whether none failed."""
    wanted, own, rows = None, None, []
    for setting in ({}, *choice.others):
        name = ', '.join(f'{key} {value}' for key, value in setting.items()) or 'its own'
        try:
            with launched_with(choice, setting):
                times, results = zip(*(measured(choice, inputs) for inputs in inputs_of(choice)))
            wanted, own = wanted or results, own or times
            if not all(map(partial(agree, tolerance(DTYPE)), wanted, results)):
                raise ValueError('its results are others')
            ratio = statistics.geometric_mean(map(float.__truediv__, times, own))
            rows.append((name, ', '.join(f'{time:.0f}' for time in times), ratio, ''))
        except Exception as error:  # Triton, its compilers and the driver raise many kinds.
            rows.append((name, '', math.inf, f'FAILED, {describe(error)[:200]}'))
    fastest = min(rows, key=lambda row: row[2])
    for row in rows:
        name, times, ratio, problem = row
        cells = (
            choice.operator,
            choice.kernel or 'all',
            name,
            times,
            f'{ratio:.2f}',
            problem or 'fastest' * (row is fastest),
        )
        print('|', ' | '.join(map(str, cells)), '|', flush=True)
    return not any(problem for *_, problem in rows)


def inputs_of(choice: Choice) -> Iterator[list[torch.Tensor]]:
    """Those of each map, which are the same each time."""
    for side, *rest in MAPS[choice.operator]:
        torch.manual_seed(0)
        shapes = OPERATORS[choice.operator].shapes(16, side, side, *rest)
        yield [(torch.randn(shape, device='cuda') / 2).to(DTYPE).requires_grad_() for shape in shapes]


def measured(choice: Choice, inputs: list[torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
    """Microseconds of the kernel, and results and gradients of its operator."""
    call = partial(OPERATORS[choice.operator].compute, *inputs, backend='triton')
    out = call()
    results = [out.detach(), *torch.autograd.grad(out, inputs, torch.ones_like(out))]
    times, _ = kernel_times(call, inputs, 5)
    return float(sum(time for name, time in times if choice.kernel in ('', name))), results


def agree(most: float, wanted: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
    """Whether the differences are roundings."""
    pairs = zip(wanted, results, strict=True)
    return all(((b.float() - a.float()).norm() <= most * a.float().norm()).item() for a, b in pairs)


@contextmanager
def launched_with(choice: Choice, setting: dict[str, int]) -> Iterator[None]:
    """Launches of the kernel have other arguments."""
    name = next(name for name in ('launch', 'run') if hasattr(choice.module, name))
    usual = getattr(choice.module, name)
    constants = {
        key: tl.constexpr(value) if isinstance(getattr(choice.module, key), tl.constexpr) else value
        for key, value in setting.items()
        if hasattr(choice.module, key)
    }
    arguments = {key: value for key, value in setting.items() if key not in (*constants, 'times')}

    def launch(kernel: object, grid: tuple[int, ...], *args: object, **kwargs: object) -> None:
        inner, options = kernel, {}
        if isinstance(kernel, Autotuner):
            inner, options = kernel.fn, kernel.configs[0].all_kwargs()
        if setting and choice.kernel in ('', inner.__name__):
            kernel, kwargs = inner, kwargs | options | arguments
            if 'times' in setting:
                kwargs['num_warps'] *= setting['times']
        usual(kernel, grid, *args, **kwargs)

    try:
        with mock.patch.multiple(choice.module, **{name: launch}, **constants):
            forget(choice.module, constants)
            yield
    finally:
        forget(choice.module, constants)


def forget(module: ModuleType, constants: dict[str, object]) -> None:
    """What is known of the functions of a module with other constants."""
    gpu.LAUNCHES.clear()
    for function in vars(module).values() if constants else ():
        if hasattr(function, 'cache_clear'):
            function.cache_clear()
        if isinstance(function, JITFunction):  # not if they are interpreted
            function.hash, function.used_global_vals = None, {}
            function.device_caches.clear()


if __name__ == '__main__':
    main()
