"""Time backbones beside their peers, run after run (A B A B), and measure what memory they take.

    python tools/benchmark.py                                             # every backbone here beside its peer
    python tools/benchmark.py elsa-swin-t mit-b2 --peer swin-t --sizes 512x512 800x1333 --steps training
    python tools/benchmark.py configs/shunted/shunted-s_in1k.py --peer pvtv2-b2 --device cuda --dtype bfloat16 --compile

A model is a name of MODELS below or a config, whose backbone is taken. "name:reference" runs our model on the plain
references of its operators instead of their fast paths.

Times are medians over runs in one process, models taking turns; ratios are to the peer. Memory is the peak of a process
that runs one model only, above what it held idle with the model built. Over several sizes, "n^..." is the power of the
number of pixels with which time, memory and operations grow. Everything goes to a table, a JSON file and a plot in
--out.
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
from unittest import mock

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as REGISTRY
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn

from mmattn.analysis import count_operations
from mmattn.engine.export import any_size
from mmattn.ops import elsa, global_self_attention, mean_shift

#: name -> config of a backbone
MODELS = {
    'elsa-swin-t': dict(type='ELSASwin', arch='tiny'),
    'shunted-s': dict(type='ShuntedTransformer', arch='small'),
    'msf-vit-s': dict(type='MSFViT', arch='small'),
    'msf-swin-t': dict(type='MSFSwin', arch='tiny'),
    'gsa-r50': dict(type='GSAResNet', depth=50),
    'swin-t': dict(type='mmdet.SwinTransformer'),
    'pvtv2-b2': dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[3, 4, 6, 3]),
    'r50': dict(type='mmdet.ResNet', depth=50),
    'mit-b2': dict(type='mmseg.MixVisionTransformer', embed_dims=64, num_layers=[3, 4, 6, 3], num_heads=[1, 2, 5, 8]),
    'vit-s': dict(type='mmseg.VisionTransformer', img_size=(512, 512), embed_dims=384, num_layers=12, num_heads=6),
}
#: ours -> what its users have today
PEERS = {
    'elsa-swin-t': 'swin-t',
    'shunted-s': 'pvtv2-b2',
    'msf-vit-s': 'vit-s',
    'msf-swin-t': 'swin-t',
    'gsa-r50': 'r50',
}
#: type of a model -> the operator that "name:reference" runs plainly, and how
REFERENCES = {
    'ELSASwin': (elsa, elsa.elsa_attention_reference),
    'GSAResNet': (global_self_attention, global_self_attention.axial_attention_reference),
    'MSFSwin': (mean_shift, mean_shift.mean_shift_attention_reference),
    'MSFViT': (mean_shift, mean_shift.mean_shift_attention_reference),
}
STEPS = ('inference', 'training')
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='*', metavar='MODEL', help=f'a config or one of {", ".join(MODELS)}')
    parser.add_argument('--peer', help="what the ratios are to (default: each model's own, see PEERS)")
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
    models = args.models or list(PEERS)
    for name in models if args.peer is None else [*models, args.peer]:
        if name.removesuffix(':reference') not in MODELS and not Path(name.removesuffix(':reference')).is_file():
            parser.error(f'{name} is neither a config nor one of {", ".join(MODELS)}')
        if name.endswith(':reference') and backbone_config(name)['type'] not in REFERENCES:
            parser.error(f'{name}: {backbone_config(name)["type"]} has no operator with a plain reference')
    if args.peer is None and not set(models) <= set(PEERS):
        parser.error(f'--peer is needed for {", ".join(sorted(set(models) - set(PEERS)))}')
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
        groups.setdefault(args.peer or PEERS[model], []).append(model)
    rows = [row for peer, ours in groups.items() for row in compare([peer, *ours], args)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'benchmark.json').write_text(json.dumps(dict(machine=machine, rows=rows), indent=1))
    (args.out / 'benchmark.md').write_text(f'{machine}\n\n{table(rows)}')
    if len(args.sizes) > 1:
        plot(rows, args.out / 'benchmark.png')
    print(f'\n{table(rows)}\nSee {args.out}.')


def compare(names: list[str], args: argparse.Namespace) -> list[dict]:
    """A row per step, size and model of a peer (first) and the models measured against it."""
    rows = []
    models = {name: build(name, args) for name in names}
    for step in args.steps:
        peaks = {name: peak_memory(name, step, args) for name in names}
        for number, (height, width) in enumerate(args.sizes):
            x = picture(height, width, args)
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for run in range(args.runs + 1):
                for name in names:
                    elapsed = timed(name, models[name], x, step, args)
                    if run:  # the first is a warm-up
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


def backbone_config(name: str) -> dict:
    """Of the backbone that a command line names."""
    name = name.removesuffix(':reference')
    return Config.fromfile(name).model.backbone if name.endswith('.py') else MODELS[name]


def build(name: str, args: argparse.Namespace) -> nn.Module:
    """That backbone, with its initial weights."""
    config = backbone_config(name)
    package = re.match(r'(mm\w+)\.', config['type'])
    import_modules_from_strings([f'{package[1]}.models' if package else 'mmattn'])
    model = REGISTRY.build({**config, 'init_cfg': None}).to(args.device)
    if not args.compile:
        return model
    torch.fx.experimental._config.use_duck_shape = False  # for the first may be square
    return torch.compile(model, dynamic=True, options=dict(layout_optimization=False))


def run(name: str, model: nn.Module, x: Tensor, step: str, args: argparse.Namespace) -> None:
    """One inference, or one forward and backward pass; what it leaves behind is gradients."""
    path = contextlib.nullcontext()
    if name.endswith(':reference'):
        op, reference = REFERENCES[backbone_config(name)['type']]
        path = mock.patch.object(op, '_select', lambda *_: reference)
    training = step == 'training'
    model.train(training)
    model.zero_grad(set_to_none=True)
    half = args.dtype != 'float32'
    with path, torch.set_grad_enabled(training):
        with torch.autocast(x.device.type, getattr(torch, args.dtype)) if half else contextlib.nullcontext():
            maps = model(x)
        if training:
            sum(out.float().square().mean() for out in maps).backward()


def timed(name: str, model: nn.Module, x: Tensor, step: str, args: argparse.Namespace) -> float:
    """Seconds of one run."""
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None
    synchronize()
    started = time.perf_counter()
    run(name, model, x, step, args)
    synchronize()
    return time.perf_counter() - started


def peak_memory(name: str, step: str, args: argparse.Namespace) -> list[int]:
    """Bytes that a process of its own takes above its idle state, for every size."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context('spawn').Process(target=_measure_memory, args=(name, step, args, sender))
    process.start()
    sender.close()
    peaks = receiver.recv()
    process.join()
    return peaks


def _measure_memory(name: str, step: str, args: argparse.Namespace, sender) -> None:
    torch.set_num_threads(args.threads)
    # Large blocks are given back at once: else the peak would hold what the heap could not fill, now more, now less.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)
    model = build(name, args)
    run(name, model, picture(64, 64, args), step, args)  # libraries load what they need
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
        x = picture(height, width, args)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            Path('/proc/self/clear_refs').write_text('5')  # the peak starts anew
        run(name, model, x, step, args)
        peaks.append((torch.cuda.max_memory_allocated() if cuda else _status('VmHWM')) - idle)
    sender.send(peaks)


def _status(key: str) -> int:
    """A figure of this process, in bytes."""
    return int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) * 1024


def picture(height: int, width: int, args: argparse.Namespace) -> Tensor:
    return torch.randn(args.batch, 3, height, width, device=args.device)


def operations(model: nn.Module, x: Tensor) -> float:
    """Multiply-adds of one picture."""
    model.eval()
    return count_operations(lambda: getattr(model, '_orig_mod', model)(x[:1]))  # as it is before torch.compile


def table(rows: list[dict]) -> str:
    """Markdown: figures, their ratios to the peer, and the exponents of growth over the sizes."""
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
    """Of the number of pixels, fitted to the rows' figures."""
    return np.polyfit(np.log([row['pixels'] for row in rows]), np.log([row[key] for row in rows]), 1)[0]


def plot(rows: list[dict], path: Path) -> None:
    """Time and memory over the number of pixels."""
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
