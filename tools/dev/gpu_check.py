"""Check and measure mmattn on a GPU, the most valuable things first.

    make gpu-check                                # all steps
    python tools/dev/gpu_check.py                 # the same, if torch, triton, timm, pytest and mmengine are there
    python tools/dev/gpu_check.py operators       # only the operators: right or wrong, share of the bandwidth, defaults
    python tools/dev/gpu_check.py --device cpu    # a dry run of every step without a GPU, at small sizes

Every step is a process of its own, which may take 10 minutes; all steps together may take 45. A step that needs a
package that is missing is left out. After every step, its tables and the end of its output are appended to
--out/results.md, and all of its output is in a log beside it. What was measured before an interruption is there. The
last section says which backends should be the defaults.

The dry run finds what would stop a step. Triton's interpreter runs the kernels, compiled models are tried without their
backward passes, and no figure has a meaning. A step may take half an hour, and all steps four.
"""

import argparse
import functools
import importlib
import itertools
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[2]
#: device -> seconds that a step may take, and all steps
LIMITS = dict(cuda=(600, 2700), cpu=(1800, 14400))
#: model -> baseline; only timm's ViT has fused attention
BASELINES = {
    'elsa-swin-t': 'swin-t',
    'shunted-s': 'pvtv2-b2',
    'msf-vit-s': 'timm-vit-s',
    'msf-swin-t': 'swin-t',
    'gsa-r50': 'r50',
}
#: device -> batch and size of images
MEASURED = dict(cuda=[(16, '512x512'), (1, '512x512'), (2, '800x1333')], cpu=[(1, '64x64')])
#: config -> what ends its training after about 200 steps, or 20 in the dry run, which has a tenth of the images
TOY = {
    'elsa-swin-toy_in1k': 'train_cfg.max_epochs=2',
    'mask-rcnn_elsa-swin-toy_fpn': 'train_cfg.max_epochs=2',
    'elsa-swin-toy_upernet': 'train_cfg.max_iters={iterations}',
}
#: written by the part "operators", read for the last section
ROWS = 'operators.json'
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
    'mean shift in windows': SWIN,
    'shunted': NAT[1:],
    'neighbourhood': NAT,
    'content': GSA,
    'axial, along columns': GSA,
    'axial, along rows': GSA,
    'depth-wise convolution': NAT,
}
#: environment of the dry run, which there is no GPU in
DRY_RUN = dict(CUDA_VISIBLE_DEVICES='', TRITON_INTERPRET='1', MMATTN_TEST_GPU='cpu')
NO_MEANING = ' (dry run on the CPU, no figure has a meaning)'


class Step(NamedTuple):
    name: str
    command: Sequence[str | Path]
    needs: tuple[str, ...] = ()  # modules, or one of the other names in absent()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', nargs='?', choices=PARTS, help='one part only, in this process')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='cpu: a dry run')
    parser.add_argument('--config', choices=TOY, default='elsa-swin-toy_upernet', help='of the part "toy"')
    parser.add_argument('--out', type=Path, default=ROOT / 'work_dirs' / 'gpu_check')
    args = parser.parse_args()
    args.out = args.out.resolve()
    if args.device == 'cuda' and not torch.cuda.is_available():
        sys.exit(f'There is no GPU that torch {torch.__version__} can use, and this check is for GPUs.')
    if args.device == 'cpu':
        os.environ.update(DRY_RUN)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        PARTS[args.part](args)
        return
    rows = args.out / ROWS
    rows.unlink(missing_ok=True)
    note = NO_MEANING if args.device == 'cpu' else ''
    try:
        failed = run_steps(steps(args.out, args.device), args.out, *LIMITS[args.device], note=note)
    finally:
        table = defaults(json.loads(rows.read_text('utf-8'))) if rows.exists() else 'no time was measured'
        write(args.out, f'## default backends{note}\n\n{table}\n')
    if failed:
        sys.exit(f'Steps failed: see {args.out / "results.md"}')


def steps(out: Path, device: str = 'cuda') -> list[Step]:
    """All steps, the most valuable first. Their files go to ``out``."""
    dry = device == 'cpu'
    part = [sys.executable, Path(__file__), '--device', device, '--out', out]
    tests = [sys.executable, '-m', 'pytest', '-q', '-o', 'addopts=', '-s', '-p', 'no:cacheprovider']
    tests += ['-m', 'not slow'] if dry else side_by_side()
    kernels = ['tests/ops/test_triton.py']
    bench = [sys.executable, ROOT / 'tools' / 'benchmark.py', '--device', device, '--dtype', 'bfloat16', '--profile']
    bench += ['--runs', '1'] if dry else []
    listed = [
        Step('environment', [*part, 'environment']),
        Step('operators', [*part, 'operators'], ('pytest', 'triton')),
        Step('kernels', [*tests, *kernels], ('pytest', 'triton')),
        Step('backbones', [*tests, 'tests/backbones/test_gpu.py', *(['-k', 'ELSASwin'] if dry else [])], ('pytest',)),
    ]
    for (batch, size), runtime in itertools.product(MEASURED[device], ('eager', 'compile')):
        for model, baseline in BASELINES.items():
            if absent('mmdet') and not baseline.startswith('timm'):
                baseline = f'timm-{baseline}'
                size = size.replace('1333', '1344')  # timm's Swin takes multiples of 4 only
            name = f'{model} {runtime} {batch}x{size}'
            options = ['--baseline', baseline, '--runtime', runtime, '--batch', str(batch), '--sizes', size]
            # Inductor's C++ code for a backward pass takes compilers many minutes.
            options += ['--steps', 'inference'] if dry and runtime == 'compile' else []
            listed.append(Step(name, [*bench, model, *options, '--out', out / name.replace(' ', '-')]))
    for head in ('mask-rcnn', 'cascade-mask-rcnn'):
        config = f'configs/elsa_swin/{head}_elsa-swin-t_fpn_ms-1x_coco.py'
        batch, size = MEASURED[device][-1]
        options = ['--whole', '--batch', str(batch), '--sizes', size, '--out', out / head]
        options += ['--dtype', 'float32'] if dry else []  # MMCV's NMS on the CPU takes no other
        listed.append(Step(head, [*bench, config, 'r50', '--baseline', 'swin-t', *options], ('mmdet', 'mmcv on GPUs')))
    for config, package in zip(TOY, ('mmpretrain', 'mmdet', 'mmseg')):
        listed.append(Step(f'training {config}', [*part, 'toy', '--config', config], ('mmcv on GPUs', package)))
    command = ['env', f'ADE20K_ROOT={out / f"toy-{device}" / "ADEChallengeData2016"}', 'bash', 'tools/dist_train.sh']
    options = ['--work-dir', out / 'two-gpus', '--cfg-options', f'train_cfg.max_iters={5 if dry else 50}']
    options.append('train_cfg.val_interval=1000')
    command += ['projects/lab/configs/toy/elsa-swin-toy_upernet.py', '2', *options]
    listed.append(Step('SyncBN on two GPUs', command, ('mmseg', 'mmcv on GPUs', 'two GPUs')))
    return [step._replace(needs=tuple(need for need in step.needs if not dry or 'GPUs' not in need)) for step in listed]


def side_by_side() -> list[str]:
    """Options of pytest for a process on each core, up to 12: torch takes a minute or more to compile a backbone."""
    return [] if absent('xdist') else ['-n', str(min(os.cpu_count() or 1, 12)), '--dist', 'worksteal']


def absent(need: str) -> str:
    """Why a step that needs this cannot run here; '' if it can."""
    if need == 'two GPUs':
        return '' if torch.cuda.device_count() > 1 else 'there is one GPU'
    try:
        if need != 'mmcv on GPUs':
            importlib.import_module(need)
        elif importlib.import_module('mmcv.ops').get_compiling_cuda_version() == 'not available':
            compiled = not importlib.import_module('mmcv._ext').__file__.endswith('.py')  # as that of mmcv_ops
            return 'mmcv was compiled without CUDA' if compiled else ''
    except ImportError as error:
        return str(error)
    return ''


def run_steps(
    steps: Sequence[Step],
    out: Path,
    step_limit: float = LIMITS['cuda'][0],
    whole_limit: float = LIMITS['cuda'][1],
    note: str = '',
) -> int:
    """Run steps one after the other, and append what comes of each to ``out/results.md``.

    Args:
        step_limit: seconds a step may take.
        whole_limit: seconds that all steps may take.
        note: follows the date in the heading.

    Returns:
        how many failed or took too long. A step that is left out is not counted.
    """
    packages = os.pathsep.join(map(str, (ROOT, *ROOT.glob('projects/*'))))
    first = dict(PYTHONPATH=packages, PATH=Path(sys.executable).parent)  # scripts of the shell call "python"
    paths = {name: os.pathsep.join([str(path), os.environ.get(name, '')]) for name, path in first.items()}
    environment = {**os.environ, **paths}
    failed, started = 0, time.monotonic()
    write(out, f'# {time.strftime("%Y-%m-%d %H:%M:%S")}{note}\n')
    for step in steps:
        left = whole_limit - (time.monotonic() - started)
        reasons = [reason for need in step.needs if (reason := absent(need))]
        if reasons or left <= 0:
            write(out, f'## {step.name}: left out\n\n{reasons[0] if reasons else "no time is left"}\n')
            continue
        log, began = out / f'{step.name.replace(" ", "-")}.log', time.monotonic()
        with log.open('wb') as file:
            process = subprocess.Popen(
                step.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                end = 'passed' if process.wait(min(step_limit, left)) == 0 else 'FAILED'
            except subprocess.TimeoutExpired:
                end = 'STOPPED at its limit of time'
            finally:  # also what the step started, and on Ctrl+C
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        failed += end != 'passed'
        text = log.read_text('utf-8', errors='replace')
        # Markdown's alone: MMSegmentation prints one of all classes
        tables = re.findall(r'^\|.*\n\|[-|]+\n(?:\|.*\n?)*', text, re.MULTILINE)
        shown = '\n'.join([*tables, '```', *text.splitlines()[-5 if end == 'passed' else -30 :], '```'])
        write(out, f'## {step.name}: {end}, {time.monotonic() - began:.0f} s\n\n{shown}\n')
    return failed


def write(out: Path, text: str) -> None:
    """Append to the results, and print."""
    print(text, flush=True)
    with (out / 'results.md').open('a', encoding='utf-8') as file:
        file.write(text + '\n')


def environment(args: argparse.Namespace) -> None:
    """Print what the results depend on."""
    packages = 'torch triton timm mmengine onedl-mmengine mmcv onedl-mmcv mmdet onedl-mmdetection'.split()
    installed = {package.name: package.version for package in distributions()}
    print('Python', platform.python_version(), *(f'{name} {installed[name]}' for name in packages if name in installed))
    sys.stdout.flush()
    if args.device == 'cuda' and shutil.which('nvidia-smi'):
        query = '--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit,utilization.gpu'
        subprocess.run(['nvidia-smi', query, '--format=csv'], check=True)


def operators(args: argparse.Namespace) -> None:
    """Print of every backend of every operator whether it is right, and its share of the bandwidth of memory.

    It fails if a backend other than the reference fails.
    """
    rows = check_operators(args.device)
    measure(rows, args)
    print(f'\n{defaults(list(rows.values()))}')
    if any(not row['passed'] and row['backend'] != 'reference' for row in rows.values()):
        sys.exit('A backend FAILED: see the tables.')


def check_operators(device: str) -> dict[tuple[str, torch.dtype, str], dict]:
    """A row for each operator, dtype and backend: for :func:`defaults`."""
    from mmattn import selftest

    sizes = DRY_SIZES if device == 'cpu' else GPU_SIZES
    return {
        (row.operator, row.dtype, row.backend): dict(
            operator=row.operator, dtype=str(row.dtype), backend=row.backend, passed=row.passed
        )
        for row in selftest.printed(selftest.check_backends(device, sizes=sizes))
    }


def measure(rows: dict[tuple[str, torch.dtype, str], dict], args: argparse.Namespace) -> None:
    """Print times, add them to the rows, and write these."""
    from mmattn.errors import describe
    from mmattn.selftest import DTYPES, OPERATORS, candidates

    on_gpu = args.device == 'cuda'
    rate = bandwidth(args.device, 2**30 if on_gpu else 2**22)
    share = f'share of {rate / 1e9:.0f} GB/s'
    print(
        '\nA share is the time in which inputs and result, and of both passes also their gradients, are copied, divided'
    )
    print('by the time of the operator.\n')
    print(f'| operator | map | dtype | backend | forward | {share} | both passes | {share} |\n|{"---|" * 8}')
    kernels = []
    for dtype, name in itertools.product(DTYPES if on_gpu else DTYPES[:1], OPERATORS):
        compute, backends, shapes = OPERATORS[name]
        for side, heads, channels in MAPS[name] if on_gpu else [DRY_SIZES[2:]]:
            inputs = [
                torch.randn(shape, device=args.device, dtype=dtype, requires_grad=True)
                for shape in shapes(16 if on_gpu else 1, side, side, heads, channels)
            ]
            torch._dynamo.reset()
            default = chosen(compute, backends, inputs)
            for backend in candidates(name)[1:]:  # the reference, which comes first, need not be fast
                if (name, dtype, backend) not in rows:  # It takes no such tensors.
                    continue
                row = rows[name, dtype, backend]
                row.update(default=backend == default, seconds=row.get('seconds', []))
                try:
                    cells = timed(functools.partial(compute, *inputs, backend=backend), inputs, rate, row['seconds'])
                except Exception as error:
                    row.update(passed=False, seconds=[])
                    cells = f'FAILED, {describe(error)[:200]} | | |'
                print(f'| {name} | {side} x {side} x {heads} | {dtype} | {backend} | {cells} |', flush=True)
                if backend == 'triton' and row['passed']:
                    attend, runs = functools.partial(compute, *inputs, backend=backend), 5 if on_gpu else 1
                    try:
                        found = kernel_times(attend, inputs, runs)
                    except Exception as error:  # of the profiler; the times above count
                        found = f'FAILED, {describe(error)[:200]}'
                    kernels.append(f'| {name} | {side} x {side} x {heads} | {dtype} | {found} |')
        (args.out / ROWS).write_text(json.dumps(list(rows.values())), 'utf-8')
    print(f'\n| operator | map | dtype | microseconds of its Triton kernels |\n|{"---|" * 4}', *kernels, sep='\n')


def kernel_times(attend: Callable, inputs: list[torch.Tensor], runs: int) -> str:
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
    names = [f'{event.name} {time:.0f}' for event, time in zip(ours, times)]
    return ', '.join([*names, f'others {others:.0f}'])


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


def toy(args: argparse.Namespace) -> None:
    """Train a toy model in float32, float16 and bfloat16, and print the losses beside each other.

    It fails if a loss is NaN, or if the last losses in half precision are over 1.2 times those in float32.
    """
    on_gpu, data = args.device == 'cuda', args.out / f'toy-{args.device}'
    if not data.exists():
        few = [] if on_gpu else ['--train', '40', '--val', '6']
        subprocess.run([sys.executable, ROOT / 'projects/lab/tools/make_toy_data.py', data, *few], check=True)
    roots = dict(
        COCO_ROOT=f'{data}/coco/', ADE20K_ROOT=f'{data}/ADEChallengeData2016', IMAGENET_ROOT=f'{data}/imagenet'
    )
    losses = {}
    halves = ['float16', 'bfloat16'] if on_gpu else [] if 'rcnn' in args.config else ['bfloat16']  # see steps()
    for name in ('float32', *halves):
        folder = args.out / f'{args.config}-{name}'
        shutil.rmtree(folder, ignore_errors=True)
        half = [] if name == 'float32' else ['--amp']
        options = [TOY[args.config].format(iterations=200 if on_gpu else 20), 'train_cfg.val_interval=1000']
        options += [f'optim_wrapper.dtype={name}'] if half and on_gpu else []
        command = [
            sys.executable,
            'tools/train.py',
            f'projects/lab/configs/toy/{args.config}.py',
            '--work-dir',
            folder,
            *half,
        ]
        subprocess.run([*command, '--cfg-options', *options], cwd=ROOT, env={**os.environ, **roots}, check=True)
        (scalars,) = folder.glob('*/vis_data/scalars.json')
        lines = map(json.loads, scalars.read_text('utf-8').splitlines())
        losses[name] = [(line['step'], line['loss']) for line in lines if 'loss' in line]
    print(f'| step | {" | ".join(losses)} |\n|{"---|" * (len(losses) + 1)}')
    for rows in zip(*losses.values()):
        print(f'| {rows[0][0]} | {" | ".join(f"{loss:.4f}" for _, loss in rows)} |')
    last = {name: statistics.mean(loss for _, loss in rows[-5:]) for name, rows in losses.items()}
    if not all(loss <= 1.2 * last['float32'] for loss in last.values()):  # nor is NaN
        sys.exit(f'The last losses differ: {last}')


PARTS = {'environment': environment, 'operators': operators, 'toy': toy}

if __name__ == '__main__':
    main()
