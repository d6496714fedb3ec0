"""Check and measure mmattn on a GPU, the most valuable things first.

    make gpu-check                         # all steps
    python tools/dev/gpu_check.py          # the same in any environment with torch, triton, timm, pytest and mmengine
    python tools/dev/gpu_check.py speed    # only the ELSA operator beside the bandwidth floor

Every step is a process of its own, which may take 10 minutes; all steps together may take 45. A step that needs a
package that is missing is left out. After every step, its tables and the end of its output are appended to
--out/results.md, and all of its output is in a log beside it. What was measured before an interruption is there.
"""

import argparse
import functools
import importlib
import json
import os
import platform
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

import torch

ROOT = Path(__file__).resolve().parents[2]
SECONDS_A_STEP, SECONDS_IN_ALL = 600, 2700
#: model -> peer; only timm's ViT has fused attention
PEERS = {
    'elsa-swin-t': 'swin-t',
    'shunted-s': 'pvtv2-b2',
    'msf-vit-s': 'timm-vit-s',
    'msf-swin-t': 'swin-t',
    'gsa-r50': 'r50',
}
#: runtime, batch, size
MEASURED = [
    (runtime, *images)
    for images in ((16, '512x512'), (1, '512x512'), (2, '800x1333'))
    for runtime in ('eager', 'compile')
]
#: config -> what ends its training after about 200 steps
TOY = {
    'elsa-swin-toy_in1k': ['train_cfg.max_epochs=2'],
    'mask-rcnn_elsa-swin-toy_fpn': ['train_cfg.max_epochs=2'],
    'elsa-swin-toy_upernet': ['train_cfg.max_iters=200'],
}
#: the ELSA operator in the stages of ELSA-Swin-T for 16 images of 512 x 512: height and width, heads
MAPS = ((128, 3), (64, 6), (32, 12))


class Step(NamedTuple):
    name: str
    command: Sequence[str | Path]
    needs: tuple[str, ...] = ()  # modules, or one of the other names in absent()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', nargs='?', choices=PARTS, help='one part only, in this process')
    parser.add_argument('--device', default='cuda', help='of a part')
    parser.add_argument('--config', choices=TOY, default='elsa-swin-toy_upernet', help='of the part "toy"')
    parser.add_argument('--out', type=Path, default=ROOT / 'work_dirs' / 'gpu_check')
    args = parser.parse_args()
    args.out = args.out.resolve()
    if args.device == 'cuda' and not torch.cuda.is_available():
        sys.exit(f'There is no GPU that torch {torch.__version__} can use, and this check is for GPUs.')
    if args.part:
        PARTS[args.part](args)
    elif run_steps(steps(args.out), args.out):
        sys.exit(f'Steps failed: see {args.out / "results.md"}')


def steps(out: Path) -> list[Step]:
    """All steps, the most valuable first. Their files go to ``out``."""
    part = [sys.executable, Path(__file__), '--out', out]
    tests = [sys.executable, '-m', 'pytest', '-q', '-o', 'addopts=', '-s', '-p', 'no:cacheprovider']
    bench = [sys.executable, ROOT / 'tools' / 'benchmark.py', '--device', 'cuda', '--dtype', 'bfloat16', '--profile']
    listed = [
        Step('environment', [*part, 'environment']),
        Step('operators', [*tests, 'tests/ops/test_gpu.py', 'tests/ops/test_elsa_triton.py'], ('pytest', 'triton')),
        Step('speed of the ELSA operator', [*part, 'speed']),
        Step('backbones', [*tests, 'tests/backbones/test_gpu.py'], ('pytest',)),
    ]
    for runtime, batch, size in MEASURED:
        for model, peer in PEERS.items():
            if absent('mmdet') and not peer.startswith('timm'):
                peer = f'timm-{peer}'
                size = size.replace('1333', '1344')  # timm's Swin takes multiples of 4 only
            name = f'{model} {runtime} {batch}x{size}'
            settings = ['--peer', peer, '--runtime', runtime, '--batch', str(batch), '--sizes', size]
            listed.append(Step(name, [*bench, model, *settings, '--out', out / name.replace(' ', '-')]))
    for head in ('mask-rcnn', 'cascade-mask-rcnn'):
        config = f'configs/elsa_swin/{head}_elsa-swin_fpn_ms-1x_coco.py'
        settings = ['--whole', '--batch', '2', '--sizes', '800x1333', '--out', out / head]
        listed.append(Step(head, [*bench, config, 'r50', '--peer', 'swin-t', *settings], ('mmdet', 'mmcv on GPUs')))
    for config, package in zip(TOY, ('mmpretrain', 'mmdet', 'mmseg')):
        listed.append(Step(f'training {config}', [*part, 'toy', '--config', config], ('mmcv on GPUs', package)))
    command = ['env', f'ADE20K_ROOT={out / "toy" / "ADEChallengeData2016"}', 'bash', 'tools/dist_train.sh']
    options = ['--work-dir', out / 'two-gpus', '--cfg-options', 'train_cfg.max_iters=50', 'train_cfg.val_interval=1000']
    command += ['configs/toy/elsa-swin-toy_upernet.py', '2', *options]
    listed.append(Step('SyncBN on two GPUs', command, ('mmseg', 'mmcv on GPUs', 'two GPUs')))
    return listed


def absent(need: str) -> str:
    """Why a step that needs this cannot run here; '' if it can."""
    if need == 'two GPUs':
        return '' if torch.cuda.device_count() > 1 else 'there is one GPU'
    try:
        if need != 'mmcv on GPUs':
            importlib.import_module(need)
        elif importlib.import_module('mmcv.ops').get_compiling_cuda_version() == 'not available':
            return 'mmcv was compiled without CUDA'
    except ImportError as error:
        return str(error)
    return ''


def run_steps(
    steps: Sequence[Step], out: Path, step_limit: float = SECONDS_A_STEP, whole_limit: float = SECONDS_IN_ALL
) -> int:
    """Run steps one after the other, and append what comes of each to ``out/results.md``.

    Args:
        step_limit: seconds a step may take.
        whole_limit: seconds that all steps may take.

    Returns:
        how many failed or took too long. A step that is left out is not counted.
    """
    out.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]))
    failed, started = 0, time.monotonic()
    write(out, f'# {time.strftime("%Y-%m-%d %H:%M:%S")}\n')
    for step in steps:
        left = whole_limit - (time.monotonic() - started)
        reasons = [reason for need in step.needs if (reason := absent(need))]
        if reasons or left <= 0:
            write(out, f'## {step.name}: left out\n\n{reasons[0] if reasons else "no time is left"}\n')
            continue
        log, began = out / f'{step.name.replace(" ", "-")}.log', time.monotonic()
        with log.open('w') as file:
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
        lines = log.read_text(errors='replace').splitlines()
        tables = [line for line in lines if line.startswith('|')]
        shown = '\n'.join([*tables, '', '```', *lines[-5 if end == 'passed' else -30 :], '```'])
        write(out, f'## {step.name}: {end}, {time.monotonic() - began:.0f} s\n\n{shown}\n')
    return failed


def write(out: Path, text: str) -> None:
    """Append to the results, and print."""
    print(text, flush=True)
    with (out / 'results.md').open('a') as file:
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


def speed(args: argparse.Namespace) -> None:
    """Print how the ELSA operator compares with the time in which its bytes can be copied."""
    from mmattn.ops import elsa_attention

    dtype, batch, size = (torch.bfloat16, 16, 2**29) if args.device == 'cuda' else (torch.float32, 1, 2**25)
    source, target = torch.randn(2, size, device=args.device)
    rate = 2 * source.nbytes / seconds(lambda: target.copy_(source))  # bytes read and written
    print(f'Copies: {rate / 1e9:.0f} GB/s. The floor is the time in which value, logits and output are copied; of both')
    print(f'passes, also their gradients. {dtype}, batch {batch}, 7 x 7 neighbours.\n')
    print('| map | backend | forward | floor / time | both passes | floor / time |\n|---|---|---|---|---|---|')
    for side, heads in MAPS:
        shapes = [(batch, side, side, heads, 49), (batch, side, side, heads * 32), *[(heads * 32, 7, 7)] * 2]
        logits, value, *ghosts = (torch.randn(shape, device=args.device, dtype=dtype) for shape in shapes)
        inputs = [x.requires_grad_() for x in (logits, value, *ghosts)]
        once = (logits.nbytes + 2 * value.nbytes) / rate
        for backend in ('default', 'shifted'):
            attend = functools.partial(elsa_attention, *inputs, backend={'default': None}.get(backend, backend))

            forward = torch.no_grad()(attend)
            both = lambda attend=attend, inputs=inputs: torch.autograd.grad(attend(), inputs, inputs[1])
            cells = []
            # the backward pass reads logits, value and the gradient of the output, and writes those of the first two
            for call, floor in ((forward, once), (both, once + (2 * logits.nbytes + 3 * value.nbytes) / rate)):
                time = seconds(call)
                cells.append(f'{time * 1e3:.3f} ms | {floor / time:.2f}')
            print(f'| {side} x {side}, {heads} heads | {backend} | {" | ".join(cells)} |', flush=True)


def seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, on a GPU with synchronised clocks, after calls that warm up."""
    from torch.utils.benchmark import Timer  # imported here, since it warns where there is no GPU

    call()
    timer = Timer('call()', globals=dict(call=call), num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.5).median


def toy(args: argparse.Namespace) -> None:
    """Train a toy model in float32, float16 and bfloat16, and print the losses beside each other.

    It fails if a loss is NaN, or if the last losses in half precision are over 1.2 times those in float32.
    """
    data = args.out / 'toy'
    if not data.exists():
        subprocess.run([sys.executable, ROOT / 'tools/dev/make_toy_data.py', data], check=True)
    roots = dict(
        COCO_ROOT=f'{data}/coco/', ADE20K_ROOT=f'{data}/ADEChallengeData2016', IMAGENET_ROOT=f'{data}/imagenet'
    )
    losses = {}
    for name in ('float32', 'float16', 'bfloat16') if args.device == 'cuda' else ('float32',):
        folder = args.out / f'{args.config}-{name}'
        shutil.rmtree(folder, ignore_errors=True)
        half = [] if name == 'float32' else ['--amp']
        options = [*TOY[args.config], 'train_cfg.val_interval=1000', *(f'optim_wrapper.dtype={name}' for _ in half)]
        command = [sys.executable, 'tools/train.py', f'configs/toy/{args.config}.py', '--work-dir', folder, *half]
        subprocess.run([*command, '--cfg-options', *options], cwd=ROOT, env={**os.environ, **roots}, check=True)
        (scalars,) = folder.glob('*/vis_data/scalars.json')
        losses[name] = [(line['step'], line['loss']) for line in map(json.loads, scalars.open()) if 'loss' in line]
    print(f'| step | {" | ".join(losses)} |\n|{"---|" * (len(losses) + 1)}')
    for rows in zip(*losses.values()):
        print(f'| {rows[0][0]} | {" | ".join(f"{loss:.4f}" for _, loss in rows)} |')
    last = {name: statistics.mean(loss for _, loss in rows[-5:]) for name, rows in losses.items()}
    if not all(loss <= 1.2 * last['float32'] for loss in last.values()):  # nor is NaN
        sys.exit(f'The last losses differ: {last}')


PARTS = {'environment': environment, 'speed': speed, 'toy': toy}

if __name__ == '__main__':
    main()
