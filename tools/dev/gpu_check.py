"""Check and measure mmattn on a GPU in at most 590 seconds, the most valuable things first.

    make gpu-check                                    # in the project's environment
    python tools/dev/gpu_check.py --bundle FILE       # on a machine with torch alone: FILE is of gpu_bundle.py
    python tools/dev/gpu_check.py --photos FOLDER     # trains on the images for validation in FOLDER/coco and
                                                      # FOLDER/ADEChallengeData2016, as COCO and ADE20K have them
    python tools/dev/gpu_check.py --steps eager 'half gsa-r50' --models gsa-r50 r50 --seconds 200    # a part of it
    python tools/dev/gpu_check.py --device cpu        # a dry run of a few models: small sizes, no figure has a meaning

Steps, in this order:

machine    versions, whether OpenMMLab's packages import, microseconds of a launch, bandwidth, speed of a product
selftest   python -m mmattn.selftest: every backend of every operator beside its reference
eager      each backbone and its peer, in bfloat16, inference and training: time, peak memory, launches and the sum of
           their times, functions of Python that take most time, and time of a CUDA graph, which has no such time
whole      100 steps of Mask R-CNN and UperNet by tools/train.py --amp, in the sizes of the papers
choices    gpu_choices.py: times of kernels with other registers, warps and stages
compiled   inference with torch.compile: all are compiled side by side, and timed one after the other
half       losses of 5 steps and results in float32, bfloat16 and float16
compiled   training, which takes longest to compile
operators  gpu_operators.py: time of each backend of each operator
tests      the tests of operators and backbones on a GPU

With a bundle, Triton's kernels are compiled ahead, and each step says how many it took and how many it compiled.
Each step, and of most each model, is a process of its own with its own limit; a failure stops no other one. Processes
that take turns import, build and compile side by side, and have the GPU one after the other. --out has results.md,
written anew after each process, results.jsonl, a line for each figure as it comes, and steps.log, all that was printed.
"""

import argparse
import cProfile
import functools
import json
import math
import os
import platform
import pstats
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from gpu_bundle import unpack

if TYPE_CHECKING:
    from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[2]
#: model -> the one that it is compared with; names of tools/benchmark.py. Only timm's ViT has fused attention.
PEERS = {
    'gsa-r50': 'r50',
    'msf-swin-t': 'swin-t',
    'shunted-s': 'pvtv2-b2',
    'msf-vit-s': 'timm-vit-s',
    'dinat-t': 'swin-t',
    'elsa-swin-t': 'swin-t',
    'elsa-volo-d1': 'volo-d1',
    'transnext-t': 'swin-t',
}
#: torch cannot compile MMDetection's Swin.
COMPILED = {'swin-t': 'timm-swin-t'}
DETECTORS = {
    'gsa-r50': 'configs/gsa/mask-rcnn_gsa-r50_fpn_1x_coco.py',
    'r50': 'configs/baselines/mask-rcnn_r50_fpn_1x_coco.py',
    'msf-swin-t': 'configs/msf/mask-rcnn_msf-swin-t_fpn_ms-1x_coco.py',
    'swin-t': 'configs/baselines/mask-rcnn_swin-t_fpn_1x_coco.py',
    'shunted-s': 'configs/shunted/mask-rcnn_shunted-s_fpn_1x_coco.py',
}
SEGMENTORS = {
    'gsa-r50': 'configs/gsa/gsa-r50_upernet_8xb2-160k_ade20k-512x512.py',
    'r50': 'configs/gsa/gsa-r50_upernet_8xb2-160k_ade20k-512x512.py',
    'msf-swin-t': 'configs/msf/msf-swin-t_upernet_8xb2-160k_ade20k-512x512.py',
    'swin-t': 'configs/elsa_swin/swin-t_upernet_8xb2-160k_ade20k-512x512.py',
    'shunted-s': 'configs/shunted/shunted-s_upernet_8xb2-160k_ade20k-512x512.py',
}
HEADS = {'mask-rcnn': DETECTORS, 'upernet': SEGMENTORS}


class Size(NamedTuple):
    """What a device is given."""

    batch: int
    side: int
    runs: int  # of which a time is the median
    long: int  # of a detector's images
    short: int
    crop: int  # of a segmentor's images
    steps: int  # of a whole model
    patience: float  # factor of all limits


SIZES = dict(cuda=Size(16, 512, 5, 1333, 800, 512, 100, 1), cpu=Size(1, 64, 1, 96, 64, 64, 2, 20))
COLUMNS = (
    'eager ms',
    'eager again ms',
    'kernels ms',
    'kernels',
    'graph ms',
    'compiled ms',
    'memory GiB',
    'compiled GiB',
)
DTYPES = ('float16', 'bfloat16', 'float32')
#: models of the dry run
FEW = ('gsa-r50', 'r50')


class Step(NamedTuple):
    name: str
    command: Sequence[str | Path]
    limit: float  # seconds, of those that take turns from their turn on


class Group(NamedTuple):
    """Steps that run one after the other."""

    steps: list[Step]
    prepare: float = 0  # seconds in which all run side by side, until they end or wait for their turn; 0: none waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', nargs='?', choices=PARTS, help='one part, in this process')
    parser.add_argument('--model', help='of that part')
    parser.add_argument('--processes', type=int, default=1, help='of the part "whole"')
    parser.add_argument('--device', choices=SIZES, default='cuda', help='cpu: a dry run')
    parser.add_argument('--bundle', type=Path, metavar='FILE', help='packages and data, of gpu_bundle.py')
    parser.add_argument(
        '--photos', type=Path, metavar='FOLDER', help='default: those of the bundle, else made-up images'
    )
    parser.add_argument('--models', nargs='+', choices=models(), help='these only (default: all; dry run: a few)')
    parser.add_argument('--steps', nargs='+', metavar='NAME', help='these only, or those of some models')
    parser.add_argument('--columns', nargs='+', choices=COLUMNS, default=COLUMNS, help='of eager and compiled models')
    parser.add_argument('--seconds', type=float, help='of all steps (default: 590; dry run: 3600)')
    parser.add_argument('--out', type=Path, default=ROOT / 'work_dirs' / 'gpu_check')
    args = parser.parse_args()
    args.out, args.photos = args.out.resolve(), args.photos and args.photos.resolve()
    if args.device == 'cuda' and not torch.cuda.is_available():
        sys.exit(f'There is no GPU that torch {torch.__version__} can use, and this check is for GPUs.')
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        PARTS[args.part](args)
        return
    for name in ('results.md', 'results.jsonl', 'steps.log'):
        (args.out / name).unlink(missing_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        paths = [ROOT, *ROOT.glob('projects/*'), ROOT / 'tools', ROOT / 'tools' / 'dev']
        environment = dict(os.environ)
        environment['TRITON_CACHE_MANAGER'] = 'gpu_kernels:CountingCache'
        if args.device == 'cpu':  # where tests that need a GPU run, too
            environment.update(CUDA_VISIBLE_DEVICES='', MMATTN_TEST_GPU='cpu')
        if args.bundle:
            bundle = unpack(args.bundle, Path(folder, 'bundle'), ROOT)
            paths = [bundle / 'site', *paths]
            environment['TRITON_CACHE_DIR'] = str(Path(folder, 'triton'))
            args.photos = args.photos or next(p for name in ('photos', 'toy') if (p := bundle / name).is_dir())
        environment['PYTHONPATH'] = os.pathsep.join(map(str, [*paths, os.environ.get('PYTHONPATH', '')]))
        if args.bundle:
            use = [sys.executable, ROOT / 'tools/dev/gpu_kernels.py', '--use', bundle / 'kernels']
            subprocess.run(use, env=environment)  # Without kernels, the steps compile their own.
        if not args.photos:
            args.photos = Path(folder, 'toy')
            make = [sys.executable, ROOT / 'projects/lab/tools/make_toy_data.py', args.photos, '--train', '1']
            subprocess.run(make, env=environment, check=True)
        left = (args.seconds or (590 if args.device == 'cuda' else 3600)) - (time.monotonic() - started)
        found = groups(args)
        names = {name: {name, *(step.name for step in group.steps)} for name, group in found.items()}
        if unknown := set(args.steps or ()) - set().union(*names.values()):
            parser.error(f'--steps must be of {", ".join(map(repr, found))}, not {", ".join(sorted(unknown))}')
        if args.steps:
            for name, group in found.items():
                group.steps[:] = [step for step in group.steps if {name, step.name} & {*args.steps}]
        failed = run(found, args.out, left, environment)
    if failed:
        sys.exit(f'Steps failed: see {args.out / "results.md"}')


def models() -> list[str]:
    """All backbones, and their peers beside them."""
    return list(dict.fromkeys(name for pair in PEERS.items() for name in pair))


def groups(args: argparse.Namespace) -> dict[str, Group]:
    """All steps, the most valuable first."""
    names = args.models or (models() if args.device == 'cuda' else FEW)
    patience = SIZES[args.device].patience
    common = ['--device', args.device, '--out', args.out]
    common += ['--photos', args.photos] if args.photos else []
    common += ['--columns', *args.columns]

    def turns(part: str, of: Sequence[str], prepare: float, limit: float) -> Group:
        command = [sys.executable, Path(__file__), part, *common, '--model']
        return Group([Step(f'{part} {name}', [*command, name], limit * patience) for name in of], prepare * patience)

    def alone(name: str, limit: float, *command: object) -> Step:
        return Step(name, [sys.executable, *command], limit * patience)

    def selftest(dtype: str) -> Step:
        return alone(f'selftest {dtype}', 0, '-m', 'mmattn.selftest', '--device', args.device, '--dtype', dtype)

    compiled = list(dict.fromkeys(COMPILED.get(name, name) for name in names))
    trained = [f'{head} {name}' for head in HEADS for name in HEADS[head] if name in names]
    if args.device == 'cpu':  # each takes a minute
        compiled, trained = compiled[-1:], trained[::3]
    tests = ['tests/ops/test_gpu.py', 'tests/ops/test_triton.py', 'tests/backbones/test_gpu.py']
    device = ['--device', args.device]
    few = ['-k', 'half_precision and MSFSwin'] if args.device == 'cpu' else ['-n', '12']
    found = {
        'machine': Group([alone('machine', 60, Path(__file__), 'machine', *common)]),
        'selftest': Group([selftest(dtype) for dtype in DTYPES[args.device == 'cpu' :]], 90 * patience),
        'eager': turns('eager', names, 60, 25),
        'whole': turns('whole', trained, 60, 75),
        'choices': Group([alone('choices', 60, ROOT / 'tools/dev/gpu_choices.py', *device)]),
        'compiled inference': turns('compiled', [f'{name} inference' for name in compiled], 150, 10),
        'half': turns('half', [name for name in names if name in PEERS], 60, 0),
        'compiled training': turns('compiled', [f'{name} training' for name in compiled], 180, 10),
        'operators': Group([alone('operators', 240, ROOT / 'tools/dev/gpu_operators.py', *device)]),
        'tests': Group([alone('tests', 400, '-m', 'pytest', '-q', '-o', 'addopts=', *tests, *few)]),
    }
    if torch.cuda.device_count() > 1:
        found['two GPUs'] = turns('whole', trained[-1:], 60, 75)
        for step in found['two GPUs'].steps:
            step.command.extend(['--processes', '2'])
    return found


def run(groups: dict[str, Group], out: Path, seconds: float, environment: dict[str, str]) -> int:
    """Run steps, and write what comes of each to ``out``. Returns how many failed or were stopped."""
    end, sections, failed = time.monotonic() + seconds, [], 0
    at_once = max(os.cpu_count() or 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        for group in groups.values():
            size = at_once if group.prepare else 1
            for first in range(0, len(group.steps), size):
                steps = group.steps[first : first + size]
                if time.monotonic() > end:
                    sections += [f'### {step.name}: left out, no time is left' for step in steps]
                    write_results(out, sections)
                    continue
                # of torch.compile, where steps prepare side by side
                threads = {'TORCHINDUCTOR_COMPILE_THREADS': str(max(at_once // len(steps), 1))}
                with started(steps, Path(folder), {**threads, **environment}) as processes:
                    limit = min(time.monotonic() + group.prepare, end)
                    while time.monotonic() < limit and not all(process.is_ready() for process in processes):
                        time.sleep(0.05)
                    for process in processes:
                        if group.prepare and not process.is_ready():
                            process.stop('STOPPED before it was ready')
                    for process in processes:
                        result = process.finish(end)
                        failed += result != 'passed'
                        sections.append(process.section(result, out))
                        write_results(out, sections)
    return failed


class Process:
    """A step that runs."""

    def __init__(self, step: Step, folder: Path, environment: dict[str, str]) -> None:
        self.step, self.turn = step, folder / step.name.replace(' ', '-')
        self.log = Path(f'{self.turn}.log')
        self.began, self.stopped = time.monotonic(), ''
        with self.log.open('wb') as file:
            self.process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env={**environment, 'MMATTN_GPU_TURN': str(self.turn)},
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=os.setpgrp,  # a group, and no session: a machine may end those of its caller's only
            )

    def is_ready(self) -> bool:
        """Whether it waits for its turn, or has ended."""
        return self.process.poll() is not None or Path(f'{self.turn}.ready').exists()

    def finish(self, end: float) -> str:
        """Give it its turn. Returns how it ended."""
        if self.process.poll() is None:
            self.began = time.monotonic()
            Path(f'{self.turn}.go').touch()
            limit = max(min(self.step.limit, end - self.began), 0)
            try:
                self.process.wait(limit)
            except subprocess.TimeoutExpired:
                self.stop(f'STOPPED after {limit:.0f} s')
        return self.stopped or ('passed' if self.process.returncode == 0 else 'FAILED')

    def stop(self, why: str = '') -> None:
        """End it and all that it started."""
        self.stopped = self.stopped or why
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def section(self, result: str, out: Path) -> str:
        """Its part of results.md: tables in Markdown, and the end of its output if it failed. All goes to the log."""
        text = self.log.read_text('utf-8', errors='replace')
        title = f'{self.step.name}: {result}, {time.monotonic() - self.began:.0f} s'
        print(title, flush=True)
        with (out / 'steps.log').open('a', encoding='utf-8') as file:
            file.write(f'=== {title}\n{text}\n')
        tables = re.findall(r'^\|.*\n\|[-:| ]+\n(?:\|.*\n?)*', text, re.MULTILINE)
        shown = [] if result == 'passed' else ['```', *text.splitlines()[-20:], '```']
        return '\n'.join([f'### {title}\n', *self.kernels(), *tables, *shown])

    def kernels(self) -> list[str]:
        """How many of Triton's kernels came from its cache, and which were compiled."""
        file = Path(f'{self.turn}.kernels')
        if not file.exists():
            return []
        noted = file.read_text('utf-8').splitlines()
        new = Counter(line.removeprefix('compiled ') for line in noted if line.startswith('compiled '))
        names = ', '.join(f'{count} {name}' for name, count in new.most_common(9))
        return [f'{len(noted) - new.total()} kernels came from the cache, {new.total()} were compiled. {names}\n']


@contextmanager
def started(steps: Sequence[Step], folder: Path, environment: dict[str, str]) -> Iterator[list[Process]]:
    """Processes of steps. None is left afterwards, also after Ctrl-C."""
    processes = []
    try:
        for step in steps:
            processes.append(Process(step, folder, environment))
        yield processes
    finally:
        for process in processes:
            process.stop()


def note(out: Path, **figures: object) -> None:
    """Keep figures."""
    with (out / 'results.jsonl').open('a', encoding='utf-8') as file:
        file.write(json.dumps(figures) + '\n')


def write_results(out: Path, sections: Sequence[str]) -> None:
    """Write results.md: tables of all figures, and how each step ended."""
    file = out / 'results.jsonl'
    rows = [json.loads(line) for line in file.read_text('utf-8').splitlines()] if file.exists() else []
    part = file.with_suffix('.part')
    part.write_text('\n\n'.join([figures_table(rows), *sections]) + '\n', 'utf-8')
    part.replace(out / 'results.md')


def figures_table(rows: list[dict]) -> str:
    """All figures as tables. In brackets is the ratio to the peer."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    others: dict[str, list[str]] = {}
    for row in rows:
        if 'figures' in row:
            times.setdefault((row['model'], row['step']), {}).update(row['figures'])
        if table := row.get('table'):
            heading = f'\n| {" | ".join(table)} |\n|{"---|" * len(table)}'
            others.setdefault(heading, []).append(f'| {" | ".join(map(str, table.values()))} |')
    lines = [next((f'# {row["machine"]}\n' for row in rows if 'machine' in row), '')]
    lines += [f'| step | model | peer | {" | ".join(COLUMNS)} |', f'|{"---|" * (3 + len(COLUMNS))}']
    for (model, step), figures in times.items():
        peer = PEERS.get(model, '')
        cells = []
        for column in COLUMNS:
            name = COMPILED.get(peer, peer) if column.startswith('compiled') else peer
            beside = times.get((name, step), {}).get(column)
            ratio = f' ({figures[column] / beside:.2f})' if beside and column in figures else ''
            cells.append(f'{figures[column]:.5g}{ratio}' if column in figures else '')
        lines.append(f'| {step} | {model} | {peer} | {" | ".join(cells)} |')
    for heading, cells in others.items():
        lines += [heading, *cells]
    return '\n'.join(lines)


def machine(args: argparse.Namespace) -> None:
    """Print versions, import what the other steps need, and measure what limits a GPU."""
    from gpu_operators import bandwidth, seconds

    names = (
        'torch triton numpy timm onedl-mmengine mmengine onedl-mmcv mmcv onedl-mmdetection mmdet transformers'.split()
    )
    found = []
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f'{name} {version(name)}')
    gpu = torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU: a dry run, no figure has a meaning'
    note(args.out, machine=f'{gpu}, Python {platform.python_version()}, {", ".join(found)}')
    if args.device == 'cuda' and shutil.which('nvidia-smi'):
        query = '--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit,utilization.gpu'
        subprocess.run(['nvidia-smi', query, '--format=csv'])
    size = 8192 if args.device == 'cuda' else 256
    x, w = torch.randn(2, size, size, device=args.device, dtype=torch.bfloat16)
    product = seconds(lambda: x @ w)
    one, rows = torch.ones(1, device=args.device), torch.randn(64, 64, device=args.device)

    @torch.no_grad()
    def step(linear: torch.nn.Linear) -> None:
        with torch.autocast(args.device, torch.bfloat16):
            linear(rows)

    def linear(dtype: torch.dtype) -> float:
        layer = torch.nn.Linear(64, 64, device=args.device, dtype=dtype)
        return mean_seconds(functools.partial(step, layer), 200, args.device) * 1e6

    figures = {
        'us of an add_': mean_seconds(functools.partial(one.add_, 1), 2000, args.device) * 1e6,
        'us of a linear layer under autocast': linear(torch.float32),
        'us with weights in bfloat16': linear(torch.bfloat16),
        'GB/s of a copy': bandwidth(args.device, 2 * size**2 * 4) / 1e9,
        f'TFLOP/s of {size}^3': 2 * size**3 / product / 1e12,
    }
    note(args.out, table={name: f'{figure:.4g}' for name, figure in figures.items()})
    failed = []
    packages = 'mmattn mmcv.ops mmdet.models mmdet.datasets mmseg.models mmseg.datasets mmpretrain'.split()
    for name in (*packages, 'pytest', 'xdist', 'hypothesis'):
        try:
            print(name, import_module(name).__file__)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    if failed:
        sys.exit(f'Cannot import {", ".join(failed)}.')


def mean_seconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds of a call among others, also of Python."""
    synchronize = torch.cuda.synchronize if device == 'cuda' else lambda: None
    call()
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - began) / repeats


def median_ms(call: Callable[[], object], args: argparse.Namespace) -> float:
    """Median of some means over 0.1 s each, after calls that warm up."""
    once = mean_seconds(call, 3 if args.device == 'cuda' else 1, args.device)
    repeats = math.ceil(0.1 / once) if args.device == 'cuda' else 1
    return 1e3 * statistics.median(mean_seconds(call, repeats, args.device) for _ in range(SIZES[args.device].runs))


def measure(args: argparse.Namespace) -> None:
    """Measure a model, eager or compiled. A measure that fails is printed and leaves out no other one."""
    import benchmark
    from gpu_operators import graph_of
    from gpu_turn import wait_for_turn

    size, compiled = SIZES[args.device], args.part == 'compiled'
    options = dict(device=args.device, dtype='bfloat16', row=None, heads=None, clock='wall')
    options = argparse.Namespace(**options, batch=size.batch, sizes=[(size.side, size.side)])
    name, _, only = args.model.partition(' ')
    model, x = benchmark.eager(name, options), benchmark.image(size.side, size.side, options)
    if compiled and args.device == 'cuda':
        inductor = {'layout_optimization': False}
        if name == 'shunted-s':  # see docs/predict.md
            inductor['triton.coalesce_tiling_analysis'] = False
        model = torch.compile(model, dynamic=False, options=inductor)
    elif compiled:  # C++ code takes minutes to compile
        model = torch.compile(model, dynamic=False, backend='aot_eager')
    chosen = [only] if only else benchmark.STEPS
    steps = {step: functools.partial(benchmark.run, model, x, step, options) for step in chosen}
    for step in steps:  # kernels are loaded and compiled; a few images take less of the memory that others need, too
        patiently(functools.partial(benchmark.run, model, x if compiled else x[:2], step, options))
    model.zero_grad(set_to_none=True)
    if args.device == 'cuda':
        torch.cuda.empty_cache()
    wait_for_turn()

    def time_of(column: str, step: str) -> None:
        keep(step, {column: median_ms(steps[step], args)})

    def memory(column: str, step: str) -> None:
        keep(step, {column: benchmark.peak(model, x.shape[2:], step, options) / 2**30})

    def kernels(column: str, step: str) -> None:
        found = benchmark.operator_times(model, x, step, options)
        total = sum(microseconds for *_, microseconds in found)
        top = [(kernel[:100], count, round(microseconds)) for kernel, count, microseconds in found[:12]]
        keep(step, {column: total / 1e3, 'kernels': sum(count for _, count, _ in found)}, top=top, host=host(step))

    def host(step: str) -> list[tuple[str, int, int]]:
        """The functions of Python that take most time: calls and microseconds of a step."""
        profile, repeats = cProfile.Profile(), 5
        profile.runcall(mean_seconds, steps[step], repeats - 1, args.device)
        found = sorted(pstats.Stats(profile).stats.items(), key=lambda item: -item[1][2])
        return [
            (
                f'{Path(file).parent.name}/{Path(file).name}:{line} {function}',
                calls // repeats,
                round(1e6 * own / repeats),
            )
            for (file, line, function), (_, calls, own, *_) in found[:20]
        ]

    def graph(column: str, step: str) -> None:
        if args.device == 'cuda':
            keep(step, {column: median_ms(graph_of(steps[step]).replay, args)})
            torch.cuda.empty_cache()

    def keep(step: str, figures: dict[str, float], **more: object) -> None:
        note(args.out, part=args.part, model=name, step=step, figures=figures, **more)

    measures = {'compiled ms': time_of, 'compiled GiB': memory}
    if not compiled:  # A failed graph can spoil what follows.
        measures = {'eager ms': time_of, 'memory GiB': memory, 'kernels ms': kernels, 'eager again ms': time_of}
        measures['graph ms'] = graph
    failed = 0
    for column, function in measures.items():
        for step in steps if column in args.columns else ():
            try:
                function(column, step)
            except Exception:
                failed += 1
                print(f'{args.model}, {step}, {column}:', flush=True)
                traceback.print_exc()
    if failed:
        sys.exit(f'{failed} measures failed.')


def patiently(call: Callable[[], None]) -> None:
    """Call again while models that prepare beside this one hold the memory of the GPU."""
    for _ in range(20):
        try:
            return call()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            time.sleep(3)
    return call()


def half(args: argparse.Namespace) -> None:
    """Train a backbone for 5 steps in each precision. It fails if a number is not finite, or a result is far off."""
    import benchmark

    size = SIZES[args.device]
    options = argparse.Namespace(device=args.device, row=None, heads=None, batch=max(size.batch // 4, 1))
    images, results, good = benchmark.image(size.side, size.side, options), {}, True
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix('torch.')
        model = benchmark.eager(args.model, options)  # with the same weights
        scaler = torch.cuda.amp.GradScaler(enabled=args.device == 'cuda' and dtype == torch.float16)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        torch.manual_seed(0)  # of drop path
        losses = []
        for step in range(6):
            with torch.autocast(args.device, dtype, enabled=dtype != torch.float32):
                out = model.train(step > 0)(images)[-1].float()
            loss = (out - torch.sin(torch.arange(out.numel(), device=args.device)).view_as(out)).square().mean()
            if step == 0:
                results[name] = out.detach()
                continue
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        exact = results['float32']
        difference = ((results[name] - exact).norm() / exact.norm()).item()
        good &= difference < 0.1 and all(math.isfinite(loss) for loss in losses)
        shown = ', '.join(f'{loss:.4g}' for loss in losses)
        note(
            args.out, table={'backbone': args.model, 'dtype': name, 'difference': f'{difference:.1e}', 'losses': shown}
        )
    if not good:
        sys.exit('A number is not finite, or results in half precision are far from those in float32.')


def whole_config(name: str, size: Size, photos: Path) -> 'Config':
    """The config of a detector or segmentor, with the same data and steps whatever its recipe has."""
    from mmengine.config import Config

    head, _, model = name.partition(' ')
    cfg = Config.fromfile(ROOT / HEADS[head][model])
    data = 'coco_instance.py' if head == 'mask-rcnn' else 'ade20k.py'
    train = Config.fromfile(ROOT / 'configs/_base_/datasets' / data).train_dataloader
    if head == 'mask-rcnn':
        train.dataset.update(data_root=f'{photos}/coco/', ann_file='annotations/instances_val2017.json')
        train.dataset.data_prefix.img = 'val2017/'
        del train['batch_sampler']
    else:
        train.dataset.update(data_root=f'{photos}/ADEChallengeData2016')
        train.dataset.data_prefix = dict(img_path='images/validation', seg_map_path='annotations/validation')
        cfg.model.data_preprocessor.size = (size.crop, size.crop)
        if model == 'r50':
            cfg.model.backbone = dict(type='ResNetV1c', depth=50, norm_cfg=dict(type='SyncBN'))
    if model == 'swin-t':  # the other packages' own
        cfg.model.backbone = dict(type='SwinTransformer', drop_path_rate=cfg.model.backbone.drop_path_rate)
    sizes = dict(Resize=(size.long, size.short), RandomResize=(4 * size.crop, size.crop))
    for transform in train.dataset.pipeline:
        if transform.type in sizes:
            transform.scale = sizes[transform.type]
        elif transform.type == 'RandomCrop':
            transform.crop_size = (size.crop, size.crop)
    workers = 4 if size.steps > 2 else 0
    train.update(sampler=dict(type='InfiniteSampler'), num_workers=workers, persistent_workers=workers > 0)
    cfg.train_dataloader = train
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=size.steps, val_interval=size.steps)
    cfg.param_scheduler = [dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50)]
    for split in ('val', 'test'):
        cfg.update({f'{split}_{part}': None for part in ('dataloader', 'cfg', 'evaluator')})
    cfg.default_hooks.logger.interval = max(size.steps // 20, 1)
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=size.steps + 1, save_last=False)
    cfg.log_processor = dict(by_epoch=False)
    cfg.model.backbone.init_cfg = None
    cfg.update(custom_imports=dict(imports=['gpu_turn']), custom_hooks=[dict(type='TurnHook')], randomness=dict(seed=0))
    return cfg


def whole(args: argparse.Namespace) -> None:
    """Train a detector or segmentor in mixed precision. It fails if a loss is not finite."""
    head, _, model = args.model.partition(' ')
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'config.py')
        whole_config(args.model, SIZES[args.device], args.photos).dump(file)
        command = [sys.executable, 'tools/train.py', file, '--work-dir', Path(folder, 'work')]
        if args.device == 'cuda' or head != 'mask-rcnn':  # which it refuses on a CPU
            command.append('--amp')
        if args.processes > 1:
            distributed = ['-m', 'torch.distributed.run', '--nproc_per_node', str(args.processes)]
            command = [command[0], *distributed, *command[1:], '--launcher', 'pytorch']
        ended = subprocess.run(command, cwd=ROOT)
        scalars = sorted(Path(folder, 'work').glob('*/vis_data/scalars.json'))
        lines = [json.loads(line) for file in scalars for line in file.read_text('utf-8').splitlines()]
    losses = [line['loss'] for line in lines if 'loss' in line]
    if losses:
        last = lines[len(lines) // 2 :]
        figures = {key: statistics.median(line[key] for line in last) for key in ('time', 'data_time')}
        table = {'head': head, 'backbone': model, 'processes': args.processes, 'steps': lines[-1]['step']}
        table |= {'s of a step': f'{figures["time"]:.4f}', 's of data': f'{figures["data_time"]:.4f}'}
        table |= {'memory MiB': lines[-1].get('memory', ''), 'losses': ', '.join(f'{x:.3g}' for x in losses[::4])}
        note(args.out, table=table)
    if ended.returncode or not losses or not all(math.isfinite(loss) for loss in losses):
        sys.exit(f'The training ended with status {ended.returncode}, losses {losses}.')


PARTS = dict(machine=machine, eager=measure, compiled=measure, half=half, whole=whole)

if __name__ == '__main__':
    main()
