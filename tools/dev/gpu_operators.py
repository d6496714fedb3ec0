"""Time each backend of each operator on a GPU: the share of the bandwidth of memory, and which should be the default.

    python tools/dev/gpu_operators.py [--device cpu]

Results and gradients are compared with the reference first, as `python -m mmattn.selftest` does. With --device cpu, the
sizes are small, and no figure has a meaning.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from unittest import mock

import torch

from mmattn import selftest
from mmattn.errors import describe
from mmattn.selftest import OPERATORS, candidates

#: B, H, W, heads and channels of a head, at which operators are compared
GPU_SIZES, DRY_SIZES = (2, 33, 40, 4, 32), (1, 7, 8, 2, 8)
SWIN = (128, 3, 32), (64, 6, 32), (32, 12, 32)
NAT = (128, 2, 32), (64, 4, 32), (32, 8, 32)
GSA = (128, 8, 16), (64, 8, 32), (32, 8, 64)
#: operator -> sides of maps, heads and channels of a head at which it is measured: stages for images of 512 x 512
MAPS = {
    'elsa': SWIN,
    'elsa, both ghosts': SWIN,
    "elsa's logits": SWIN,
    'mean shift': ((32, 6, 64),),
    'mean shift of a projection': ((32, 6, 64),),
    'plain': ((32, 6, 64),),
    'mean shift in windows': SWIN,
    'windows': SWIN,
    "windows of MSF's maps": SWIN,
    'shunted': NAT[1:],
    'neighbourhood': NAT,
    'neighbours and pooled tokens': ((128, 3, 24), (64, 6, 24), (32, 12, 24)),  # of TransNeXt-T
    'content': GSA,
    'axial, along columns': GSA,
    'axial, along rows': GSA,
    'axial, along rows, and content': GSA,
    'columns, norm, rows and content': GSA,
    'depth-wise convolution': NAT,
    'depth-wise convolution, sum and GELU': ((128, 16, 32), (64, 32, 32), (32, 32, 32)),  # of Shunted-S
    'depth-wise convolution, GELU and gate': ((128, 12, 32), (64, 24, 32), (32, 24, 32)),  # of TransNeXt-T
    'norm and ReLU': GSA,
    'norm, sum and ReLU': ((128, 8, 32), (64, 16, 32), (32, 32, 32)),  # of GSA-R50
    'sum and layer norm': NAT,
    'GELU and linear layer': NAT,
    'transposed map': GSA,
    'average pooling': GSA,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    device = parser.parse_args().device
    sizes = DRY_SIZES if device == 'cpu' else GPU_SIZES
    failed, means = False, {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32) if device == 'cuda' else (torch.float32,):
        checked = selftest.printed(selftest.check_backends(device, [dtype], sizes))
        rows = {(r.operator, r.backend): dict(r._asdict(), dtype=str(dtype), passed=r.passed) for r in checked}
        measure(rows, dtype, device)
        print(f'\n{defaults(list(rows.values()))}', flush=True)
        for row in rows.values():
            if row.get('default') and row['passed']:
                means.setdefault(row['operator'], {})[dtype] = statistics.geometric_mean(row['seconds'])
        failed |= any(not row['passed'] and row['backend'] != 'reference' for row in rows.values())
    print(f'\n| operator, by default | float16 / bfloat16 | faster |\n|{"---|" * 3}')
    for name, of in means.items():
        if torch.float16 in of and torch.bfloat16 in of:
            ratio = of[torch.float16] / of[torch.bfloat16]
            print(f'| {name} | {ratio:.2f} | {"float16" if ratio < 1 else "bfloat16"} |')
    if failed:
        sys.exit('A backend FAILED: see the tables.')


def measure(rows: dict[tuple[str, str], dict], dtype: torch.dtype, device: str) -> None:
    """Print times, and add them to the rows of operators and backends."""
    on_gpu = device == 'cuda'
    rate = bandwidth(device, 2**30 if on_gpu else 2**22)
    share = f'share of {rate / 1e9:.0f} GB/s'
    print(
        '\nA share is the time in which inputs and result, and of both passes also their gradients, are copied, divided'
    )
    print('by the time of the operator.\n')
    print(f'| operator | map | dtype | backend | forward | {share} | both passes | {share} |\n|{"---|" * 8}')
    kernels = []
    for name, (compute, backends, shapes) in OPERATORS.items():
        for side, heads, channels in MAPS[name] if on_gpu else [DRY_SIZES[2:]]:
            inputs = [
                torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
                for shape in shapes(16 if on_gpu else 1, side, side, heads, channels)
            ]
            torch._dynamo.reset()
            default = chosen(compute, backends, inputs)
            for backend in candidates(name)[1:]:  # the reference, which comes first, need not be fast
                if (name, backend) not in rows:  # It takes no such tensors.
                    continue
                row = rows[name, backend]
                row.update(default=backend == default, seconds=row.get('seconds', []))
                call = functools.partial(compute, *inputs, backend=backend)
                place = f'| {name} | {side} x {side} x {heads} | {dtype} |'
                try:
                    cells = timed(call, inputs, rate, row['seconds'])
                except Exception as error:
                    row.update(passed=False, seconds=[])
                    cells = f'FAILED, {describe(error)[:200]} | | |'
                print(place, backend, '|', cells, '|', flush=True)
                if backend == 'triton' and row['passed']:
                    try:
                        times, others = kernel_times(call, inputs, 5 if on_gpu else 1)
                        found = ', '.join([*(f'{name} {time:.0f}' for name, time in times), f'others {others:.0f}'])
                    except Exception as error:  # of the profiler; the times above count
                        found = f'FAILED, {describe(error)[:200]}'
                    kernels.append(f'{place} {found} |')
    print(f'\n| operator | map | dtype | microseconds of its Triton kernels |\n|{"---|" * 4}', *kernels, sep='\n')


def kernel_times(attend: Callable, inputs: list[torch.Tensor], runs: int) -> tuple[list[tuple[str, float]], float]:
    """Names and median microseconds of the Triton kernels of both passes, in their order, and the sum of all others."""

    def both() -> None:
        out = attend()
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    both()
    with torch.profiler.profile() as profiler:
        for _ in range(runs):
            both()
    events = [event for event in profiler.events() if event.device_type.name == 'CUDA']
    events.sort(key=lambda event: event.time_range.start)
    # Names in C++ begin with an underscore only if they are mangled.
    ours = [event for event in events if event.name.startswith('_') and not event.name.startswith('_Z')]
    others = sum(event.time_range.elapsed_us() for event in events if event not in ours) / runs
    count = len(ours) // runs
    times = [statistics.median(event.time_range.elapsed_us() for event in ours[i::count]) for i in range(count)]
    return [(event.name, time) for event, time in zip(ours, times)], others


def bandwidth(device: str, size: int) -> float:
    """Bytes that a copy of ``size`` bytes reads and writes in a second."""
    source, target = torch.randn(2, size // 4, device=device)
    copy = functools.partial(target.copy_, source)
    return 2 * source.nbytes / seconds(copy)


def chosen(compute: Callable, backends: dict[str, Callable], inputs: list[torch.Tensor]) -> str:
    """The backend that an operator takes by itself."""
    used = []

    def noted(name: str, function: Callable) -> Callable:
        return lambda *arguments: (used.append(name), function(*arguments))[1]

    with torch.no_grad(), mock.patch.dict(backends, {name: noted(name, f) for name, f in backends.items()}):
        compute(*inputs, backend=None)
    return used[-1]  # before it, the check of compiled backends


def timed(attend: Callable, inputs: list[torch.Tensor], rate: float, times: list[float]) -> str:
    """Seconds of the forward pass and of both passes, added to ``times``, and shares of the bandwidth: as cells."""
    with torch.no_grad():
        upstream = torch.randn_like(attend())
    given = sum(x.nbytes for x in inputs)
    once = given + upstream.nbytes
    both = lambda: torch.autograd.grad(attend(), inputs, upstream)
    cells = []
    # the backward pass reads the inputs and the gradient of the result, and writes those of the inputs
    for call, moved in ((torch.no_grad()(attend), once), (both, 2 * once + given)):
        times.append(seconds(call))
        cells.append(f'{times[-1] * 1e3:.3f} ms | {moved / rate / times[-1]:.1%}')
    return ' | '.join(cells)


def seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, after calls that warm up. On a GPU, of a CUDA graph, without the time of Python."""
    from torch.utils.benchmark import Timer  # imported here, since it warns where there is no GPU

    call()
    if torch.cuda.is_available():
        call = graph_of(call).replay
    timer = Timer('call()', globals=dict(call=call), num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.2).median


def graph_of(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The kernels that a call launches. The first calls on another stream allocate what libraries need."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def defaults(rows: list[dict]) -> str:
    """A table of each operator's default on a GPU, of the fastest backend that passed, and whether they agree.

    Args:
        rows: with the keys operator, dtype, backend and passed; of measured ones also default, whether the operator
            takes it by itself, and seconds, of the same maps and passes for each backend. The fastest has the smallest
            geometric mean.
    """
    lines = ['| operator | dtype | default | fastest that passed | its time / default | agree |', f'|{"---|" * 6}']
    cases: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if 'seconds' in row:
            cases.setdefault((row['operator'], row['dtype']), []).append(row)
    for case, beside in cases.items():
        means = {row['backend']: statistics.geometric_mean(row['seconds']) for row in beside if row['passed']}
        default = next((row['backend'] for row in beside if row['default']), 'none of those measured')
        fastest = min(means, key=means.get, default='none')
        ratio = f'{means[fastest] / means[default]:.2f}' if default in means else 'the default failed'
        lines.append(f'| {" | ".join([*case, default, fastest, ratio, "yes" if fastest == default else "NO"])} |')
    return '\n'.join([*lines, '', 'Of time alone: what a default needs of memory, and float16 of range, is not in it.'])


if __name__ == '__main__':
    main()
