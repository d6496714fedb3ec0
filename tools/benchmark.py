"""Measure the time and memory of backbones and of their peers.

    python tools/benchmark.py                                             # the models that the metafiles name
    python tools/benchmark.py elsa-swin-t mit-b2 --peer swin-t --sizes 512x512 800x1333 --steps training
    python tools/benchmark.py configs/shunted/shunted-s_in1k.py --peer pvtv2-b2 --device cuda --dtype bfloat16 --compile

A model is the path of a config, the name of a config in configs/*/ (without ".py", and without "_in1k"), or a peer: see
PEERS. Its backbone is measured. "elsa-swin-t:reference" runs the operators of a model on the backend "reference", see
mmattn/ops. Without models, those in the field Benchmark of the metafiles are measured beside the peers named there.

A time is the median over runs in one process, in which the models take turns. Ratios are to the peer. Memory is the
peak of a process that runs only one model, minus what the process held before. If there are several sizes, "n^..." is
the power of the number of pixels with which time, memory and operations grow. A table, a JSON file and a plot are
written to --out.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import multiprocessing
import platform
import re
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn

from mmattn.analysis import count_operations
from mmattn.engine.export import any_size

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
#: name -> config of a backbone of another package, or of VOLO
PEERS = {
    'swin-t': dict(type='mmdet.SwinTransformer'),
    'pvtv2-b2': dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[3, 4, 6, 3]),
    'r50': dict(type='mmdet.ResNet', depth=50),
    'mit-b2': dict(type='mmseg.MixVisionTransformer', embed_dims=64, num_layers=[3, 4, 6, 3], num_heads=[1, 2, 5, 8]),
    'vit-s': dict(type='mmseg.VisionTransformer', img_size=(512, 512), embed_dims=384, num_layers=12, num_heads=6),
    # timm's VOLO takes images of one size only
    'volo-d1': dict(type='ELSAVOLO', arch='d1', stages=[dict(type='OutlookAttention'), dict(type='SelfAttention')]),
}
STEPS = ('inference', 'training')
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='*', metavar='MODEL', help='a config, or one of ' + ', '.join(PEERS))
    parser.add_argument('--peer', help='the model to which the ratios are (default: as in the metafiles)')
    parser.add_argument('--sizes', nargs='+', type=size, default=[(512, 512)], metavar='HxW')
    parser.add_argument('--steps', nargs='+', choices=STEPS, default=STEPS)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16', 'float16'), default='float32', help='of autocast')
    parser.add_argument('--compile', action='store_true', help='torch.compile, dynamic sizes')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--runs', type=int, default=5)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmark'))
    args = parser.parse_args()
    peers = benchmarked()
    models = args.models or list(peers)
    if args.peer is None and not set(models) <= set(peers):
        parser.error(f'--peer is needed for {", ".join(sorted(set(models) - set(peers)))}')
    for name in models if args.peer is None else [*models, args.peer]:
        try:
            backbone = eager(name, args)
            if ':' in name:
                with torch.no_grad():
                    backbone.eval()(image(64, 64, args))
        except (FileNotFoundError, ValueError) as error:
            parser.error(f'{name}: {error}')
    if args.compile and any_size is None:
        parser.error(f'--compile needs torch 2.6 or newer, but {torch.__version__} is installed')
    torch.set_num_threads(args.threads)
    machine = (
        f'torch {torch.__version__}, {device_name(args.device)}, {args.threads} threads, batch {args.batch}, '
        f'{args.dtype}{", compiled" if args.compile else ""}, median of {args.runs}'
    )
    print(machine, flush=True)

    groups: dict[str, list[str]] = {}
    for model in models:
        groups.setdefault(args.peer or peers[model], []).append(model)
    rows = [row for peer, ours in groups.items() for row in compare([peer, *ours], args)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'benchmark.json').write_text(json.dumps(dict(machine=machine, rows=rows), indent=1))
    (args.out / 'benchmark.md').write_text(f'{machine}\n\n{table(rows)}')
    if len(args.sizes) > 1:
        plot(rows, args.out / 'benchmark.png')
    print(f'\n{table(rows)}\nSee {args.out}.')


def compare(names: list[str], args: argparse.Namespace) -> list[dict]:
    """Measure a peer, which comes first, and models to compare with it: a row per step, size and model."""
    rows = []
    models = {name: build(name, args) for name in names}
    for step in args.steps:
        peaks = {name: peak_memory(name, step, args) for name in names}
        for number, (height, width) in enumerate(args.sizes):
            x = image(height, width, args)
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for run in range(args.runs + 1):
                for name in names:
                    elapsed = timed(models[name], x, step, args)
                    if run:  # the first run is a warm-up
                        seconds[name].append(elapsed)
            for name in names:
                row = dict(
                    model=name,
                    peer=names[0],
                    step=step,
                    size=f'{height}x{width}',
                    pixels=height * width,
                    seconds=statistics.median(seconds[name]),
                    memory=peaks[name][number],
                    operations=operations(models[name], x),
                )
                rows.append(row)
                print(
                    f'{name:24s} {step:10s} {row["size"]:>10s} {row["seconds"]:8.3f} s '
                    f'{row["memory"] / 2**30:6.2f} GiB',
                    flush=True,
                )
    return rows


def benchmarked() -> dict[str, str]:
    """Model -> peer, from the field Benchmark of the metafiles. A model's name has no "_in1k"."""
    return {
        entry['Model'].removesuffix('_in1k'): entry['Peer']
        for file in sorted(CONFIGS.glob('*/metafile.yml'))
        for collection in yaml.safe_load(file.read_text())['Collections']
        for entry in collection.get('Benchmark', [])
    }


def backbone_config(model: str) -> dict:
    """The config of a model's backbone.

    Raises:
        FileNotFoundError: if there is no such config.
    """
    if model in PEERS:
        return PEERS[model]
    files = [Path(model)] if model.endswith('.py') else sorted(CONFIGS.glob(f'*/{model}.py'))
    files += CONFIGS.glob(f'*/{model}_in1k.py')
    if not files or not files[0].is_file():
        raise FileNotFoundError(f'there is no such config, and the peers are {", ".join(PEERS)}')
    cfg = Config.fromfile(files[0])
    config = dict(cfg.model.backbone)
    if 'Classifier' in cfg.model.get('type', ''):
        config.pop('out_indices', None)  # a classifier needs the last map only, a detector all
    return config


def eager(name: str, args: argparse.Namespace) -> nn.Module:
    """The backbone that a command line names, with its initial weights, before torch.compile.

    Raises:
        FileNotFoundError: if there is no such config.
        ValueError: if it is to run on a backend, but has none.
    """
    model, _, backend = name.partition(':')
    config = backbone_config(model)
    package = re.match(r'(mm\w+)\.', config['type'])
    if backend and package:
        raise ValueError('only the backbones of mmattn have backends')
    import_modules_from_strings([f'{package[1]}.models' if package else 'mmattn'])
    backbone = MODELS.build({**config, 'init_cfg': None}).to(args.device)
    if backend:
        backbone.set_backend(backend)
    return backbone


def build(name: str, args: argparse.Namespace) -> nn.Module:
    """That backbone, compiled if the command line says so."""
    backbone = eager(name, args)
    if not args.compile:
        return backbone
    torch.fx.experimental._config.use_duck_shape = False  # the first image may be square
    return torch.compile(backbone, dynamic=True, options=dict(layout_optimization=False))


def run(model: nn.Module, x: Tensor, step: str, args: argparse.Namespace) -> None:
    """One inference, or one forward and backward pass, which leaves gradients behind."""
    training = step == 'training'
    model.train(training)
    model.zero_grad(set_to_none=True)
    half = args.dtype != 'float32'
    with torch.set_grad_enabled(training):
        with torch.autocast(x.device.type, getattr(torch, args.dtype)) if half else contextlib.nullcontext():
            maps = model(x)
        if training:
            sum(out.float().square().mean() for out in maps).backward()


def timed(model: nn.Module, x: Tensor, step: str, args: argparse.Namespace) -> float:
    """Seconds of one run."""
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None
    synchronize()
    started = time.perf_counter()
    run(model, x, step, args)
    synchronize()
    return time.perf_counter() - started


def peak_memory(name: str, step: str, args: argparse.Namespace) -> list[int]:
    """For every size, the bytes that a new process needs for a step, besides the model."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context('spawn').Process(target=_measure_memory, args=(name, step, args, sender))
    process.start()
    sender.close()
    peaks = receiver.recv()
    process.join()
    return peaks


def _measure_memory(name: str, step: str, args: argparse.Namespace, sender) -> None:
    torch.set_num_threads(args.threads)
    # Large blocks are returned to the system at once. Otherwise gaps in the heap count as memory, and differ by run.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)
    model = build(name, args)
    run(model, image(64, 64, args), step, args)  # libraries load what they need
    model.zero_grad(set_to_none=True)
    cuda = args.device.startswith('cuda')
    gc.collect()
    if cuda:
        idle = torch.cuda.memory_allocated()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        idle = _status('VmRSS')
    peaks = []
    for height, width in args.sizes:
        model.zero_grad(set_to_none=True)
        x = image(height, width, args)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            Path('/proc/self/clear_refs').write_text('5')  # resets the peak
        run(model, x, step, args)
        peaks.append((torch.cuda.max_memory_allocated() if cuda else _status('VmHWM')) - idle)
    sender.send(peaks)


def _status(key: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    return int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) * 1024


def image(height: int, width: int, args: argparse.Namespace) -> Tensor:
    return torch.randn(args.batch, 3, height, width, device=args.device)


def operations(model: nn.Module, x: Tensor) -> float:
    """Multiply-adds for one image."""
    model.eval()
    return count_operations(lambda: getattr(model, '_orig_mod', model)(x[:1]))  # the model before torch.compile


def table(rows: list[dict]) -> str:
    """A Markdown table of the figures, their ratios to the peer, and their growth over the sizes."""
    lines = [
        '| step | model | size | time | ratio | memory | ratio | operations | ratio | growth of the three |',
        '|---|---|---|---|---|---|---|---|---|---|',
    ]
    for row in rows:
        (peer,) = (
            r
            for r in rows
            if r['model'] == row['peer'] == r['peer'] and (r['step'], r['size']) == (row['step'], row['size'])
        )
        cells = [
            f'{row["seconds"] * 1e3:.0f} ms',
            f'{row["seconds"] / peer["seconds"]:.2f}',
            f'{row["memory"] / 2**30:.2f} GiB',
            f'{row["memory"] / peer["memory"]:.2f}',
            f'{row["operations"] / 1e9:.1f} G',
            f'{row["operations"] / peer["operations"]:.2f}',
        ]
        same = [r for r in rows if (r['model'], r['peer'], r['step']) == (row['model'], row['peer'], row['step'])]
        growth = ''
        if len(same) > 1 and row is same[-1]:
            growth = ', '.join(f'n^{exponent(same, key):.2f}' for key in ('seconds', 'memory', 'operations'))
        lines.append(f'| {row["step"]} | {row["model"]} | {row["size"]} | {" | ".join(cells)} | {growth} |')
    return '\n'.join(lines) + '\n'


def exponent(rows: list[dict], key: str) -> float:
    """The exponent e of a fit of the figures by pixels ** e."""
    return np.polyfit(np.log([row['pixels'] for row in rows]), np.log([row[key] for row in rows]), 1)[0]


def plot(rows: list[dict], path: Path) -> None:
    """Plot time and memory over the number of pixels."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    steps = list(dict.fromkeys(row['step'] for row in rows))
    figure, axes = plt.subplots(len(steps), 2, figsize=(12, 5 * len(steps)), layout='constrained', squeeze=False)
    for step, pair in zip(steps, axes):
        for axis, (key, unit, factor) in zip(pair, (('seconds', 's', 1), ('memory', 'GiB', 2**-30))):
            for model in dict.fromkeys(row['model'] for row in rows):
                points = sorted(
                    {(row['pixels'], row[key] * factor) for row in rows if (row['model'], row['step']) == (model, step)}
                )
                axis.plot(*zip(*points), 'o-', label=model)
            axis.set(title=step, xlabel='pixels', ylabel=f'{key}, {unit}', xscale='log', yscale='log')
            axis.grid(alpha=0.3, which='both')
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def size(text: str) -> tuple[int, int]:
    """'800x1333', height first."""
    match = re.fullmatch(r'(\d+)x(\d+)', text)
    if not match:
        raise argparse.ArgumentTypeError(f'a size is HEIGHTxWIDTH, not {text!r}')
    return int(match[1]), int(match[2])


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith('cuda') else platform.processor() or 'CPU'


if __name__ == '__main__':
    main()
