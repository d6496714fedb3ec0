"""Measure the time and memory of models and of their baselines.

    python tools/benchmark.py                                             # the models that the metafiles name
    python tools/benchmark.py elsa-swin-t mit-b2 --baseline swin-t --sizes 512x512 800x1333 --steps training
    python tools/benchmark.py shunted-s --baseline pvtv2-b2 --device cuda --dtype bfloat16 --runtime eager compile
    python tools/benchmark.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py r50 --baseline swin-t --whole
    python tools/benchmark.py --sizes 512x512 1024x1024 2048x2048 --steps inference --plot cost_over_size.png

A model is the path of a config, the name of a model in a metafile or of a config in configs/*/ (without ".py", and
without "_in1k"), or a baseline: see BASELINES. Its backbone is measured. "elsa-swin-t:reference" runs the operators of
a model on the backend "reference", see mmattn/ops. Without models, those in the field Benchmark of the metafiles are
measured beside the baselines named there.

With --whole, the first model is the config of a detector or segmentor, and all of it is measured. Any other name stands
for the same neck and heads on the backbone of that name. Inference is the forward pass up to the outputs of the heads:
a Mask R-CNN refines the proposals of its RPN, up to 1000 an image, and draws 100 masks. The selection of objects is
left out, because random weights find none in one image and hundreds in the next. In ONNX Runtime and OpenVINO, a
detector is the graph that tools/export.py writes, with the selection of objects and their masks in the size of the
image; its layers that classify are scaled, so that it finds objects. A training step is the losses of
made-up objects, or of a random map of classes, and the backward pass. Images are not padded. "compile" compiles the
backbone. The batch norm of UperNet needs --batch 2 to train.

A time is the median over runs in one process, in which the models take turns; the table has the minimum, too. A run
repeats the step for 0.1 s or more; a step of 10 s or more on the CPU runs once, after warming up. With "--clock
processor", a time is that of the processor: on a machine that does other work as well, use it with one thread. Ratios
are to the baseline in the same runtime. In ONNX Runtime and OpenVINO, models are graphs of one fixed size, which are
compared with the models in PyTorch. Compiled models are of one fixed size, too, unless several sizes are measured:
torch takes minutes to compile a graph for any size. A model that it cannot compile is left out. Memory is the peak of a
process that runs only one model, minus what the process held before; on a GPU, of torch's tensors. If there are several
sizes, "n^..." is the power of the number of pixels with which time, memory and operations grow, and --plot draws them.
A table and a JSON file are written to --out after each size. With --resume, what --out has already is not measured
again.
"""

import argparse
import ctypes
import functools
import gc
import json
import math
import multiprocessing
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import timm
import torch
import yaml
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from mmattn.analysis import count_operations
from mmattn.analysis.complexity import unpadded
from mmattn.analysis.least_time import least_time, measure_machine
from mmattn.export.graphs import RUNTIMES, any_size, largest_difference, write_onnx
from mmguard.errors import InputError, describe, refusing
from mmguard.outputs import check_output, whole_file
from mmguard.packages import PACKAGES, require, require_models, require_project
from mmguard.runs.configs import RowsAction, load_config
from mmguard.runs.rows import read_row
from mmguard.runs.running import run_tool
from mmguard.text import in_figure

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
#: name -> config of a backbone of another package, or of VOLO
BASELINES = {
    'swin-t': dict(type='mmdet.SwinTransformer'),
    'pvtv2-b2': dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[3, 4, 6, 3]),
    'r50': dict(type='mmdet.ResNet', depth=50, norm_eval=False),  # its steps compute statistics, as those of ours do
    'mit-b2': dict(type='mmseg.MixVisionTransformer', embed_dims=64, num_layers=[3, 4, 6, 3], num_heads=[1, 2, 5, 8]),
    'vit-s': dict(type='mmseg.VisionTransformer', img_size=(512, 512), embed_dims=384, num_layers=12, num_heads=6),
    # timm's VOLO takes images of one size only
    'volo-d1': dict(type='mmattn.ELSAVOLO', arch='d1', attention=None),
    # without OpenMMLab's packages. ViT's attention is fused, unlike MMSegmentation's. Swin takes multiples of 4 only.
    'timm-swin-t': dict(type='timm', model_name='swin_tiny_patch4_window7_224', strict_img_size=False),
    'timm-pvtv2-b2': dict(type='timm', model_name='pvt_v2_b2'),
    'timm-r50': dict(type='timm', model_name='resnet50', out_indices=(1, 2, 3, 4)),
    'timm-vit-s': dict(type='timm', model_name='vit_small_patch16_224', dynamic_img_size=True, dynamic_img_pad=True),
}
STEPS = ('inference', 'training')
LEAST_SECONDS = 0.1  # of a run
LONG_SECONDS = 10  # of a step that runs once
#: what tells rows apart
KEYS = ('model', 'baseline', 'runtime', 'step', 'size')
CLOCKS = dict(wall=time.perf_counter, processor=time.process_time)
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'config', nargs='*', action=RowsAction, metavar='MODEL', help='a config, or one of ' + ', '.join(BASELINES)
    )
    parser.add_argument('--row', help='of --list-rows, for the configs given as files')
    parser.add_argument('--list-rows', nargs=0, action=RowsAction, help='print the rows of the configs, and end')
    parser.add_argument('--baseline', help='the model to which the ratios are (default: as in the metafiles)')
    parser.add_argument('--sizes', nargs='+', type=size, default=[(512, 512)], metavar='HxW')
    parser.add_argument('--steps', nargs='+', choices=STEPS, default=STEPS)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16', 'float16'), default='float32', help='of autocast')
    parser.add_argument('--runtime', nargs='+', choices=('eager', 'compile', *RUNTIMES), default=('eager',))
    parser.add_argument('--whole', action='store_true', help='whole detectors or segmentors')
    parser.add_argument(
        '--profile',
        action='store_true',
        help='write the operators that take most time to --out, and the least time of all operators on this CPU',
    )
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--clock', choices=CLOCKS, default='wall', help='what times are of, see above')
    parser.add_argument('--runs', type=int, default=5)
    parser.add_argument('--plot', type=Path, metavar='FILE', help='draw time and memory over the sizes')
    parser.add_argument('--resume', action='store_true', help='keep the figures that --out has, and measure the others')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmark'))
    args = parser.parse_args()
    if args.plot and args.plot.suffix not in ('.png', '.pdf', '.svg'):
        parser.error(f'--plot must name a .png, .pdf or .svg file, not {args.plot}')
    if args.clock != 'wall' and args.device != 'cpu':
        parser.error('--clock processor is for the CPU')
    for name in ('batch', 'threads', 'runs'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} must be 1 or more, not {getattr(args, name)}')
    plots = [args.plot] if args.plot else []
    check_output(*(args.out / name for name in ('benchmark.json', 'benchmark.md', 'profile.md')), *plots)
    onnx = [runtime for runtime in args.runtime if runtime in RUNTIMES]
    if onnx and ((args.device, args.dtype) != ('cpu', 'float32') or 'inference' not in args.steps):
        parser.error(f'--runtime {onnx[0]} is for inference in float32 on the CPU')
    if onnx and args.whole and args.batch > 1:
        parser.error(f'--runtime {onnx[0]} takes one image of a whole model: --batch 1')
    if set(args.runtime) != {'eager'} and any_size is None:
        parser.error(
            f'--runtime {" and ".join(args.runtime)} need torch 2.6 or newer, but {torch.__version__} is installed'
        )
    missing = [package for package in ('onnx', 'onnxscript', *onnx) if onnx and not find_spec(package)]
    if missing:
        parser.error(f'--runtime {onnx[0]} needs {" and ".join(missing)}: pip install {" ".join(missing)}')
    with refusing(f'--device {args.device} cannot be used here', (RuntimeError, AssertionError)):
        torch.empty(1, device=args.device)
    baselines = benchmarked()
    models = args.config or list(baselines)
    if args.baseline is None and not set(models) <= set(baselines):
        parser.error(f'--baseline is needed for {", ".join(sorted(set(models) - set(baselines)))}')
    groups: dict[str, list[str]] = {}
    for model in models:
        groups.setdefault(args.baseline or baselines[model], []).append(model)
    args.heads = models[0] if args.whole else None  # the model whose neck and heads all have
    for name in dict.fromkeys([*models, *groups]):
        try:
            model = eager(name, args)
            if ':' in name:
                with torch.no_grad():
                    model.eval()(image(64, 64, args))
        except (FileNotFoundError, ValueError, InputError) as error:
            parser.error(f'{name}: {error}')
    torch.set_num_threads(args.threads)
    machine = (
        f'torch {torch.__version__}, {device_name(args.device)}, {args.threads} threads, batch {args.batch}, '
        f'{args.dtype}, median of {args.runs}, {args.clock} clock'
    )
    print(machine, flush=True)

    def write(name: str, text: str) -> None:
        with whole_file(args.out / name) as part:
            part.write_text(text, 'utf-8')

    # float32 on the CPU only: measure_machine has no other speeds
    bounded = args.profile and (args.device, args.dtype) == ('cpu', 'float32')
    args.speeds = measure_machine(CLOCKS[args.clock]) if bounded else None
    args.left_out = []
    rows = measured(args.out / 'benchmark.json', machine) if args.resume else []
    with tempfile.TemporaryDirectory() as args.graphs:
        for runtime in args.runtime:
            for baseline, ours in groups.items():
                for found in measure_models(list(dict.fromkeys([baseline, *ours])), runtime, args, rows):
                    rows += found
                    write('benchmark.json', json.dumps(dict(machine=machine, rows=rows), indent=1))
                    write('benchmark.md', f'{machine}\n\n{table(rows)}')
                torch._dynamo.reset()  # torch compiles a class a few times only
    if args.profile:
        write('profile.md', '\n'.join(profile_table(row) for row in rows if 'profile' in row))
    if args.plot:
        with whole_file(args.plot) as part:
            draw(rows, part)
    print(f'\n{table(rows)}\nSee {args.out}.')
    if args.left_out:
        sys.exit(f'Left out, see above: {", ".join(dict.fromkeys(args.left_out))}')


def measured(file: Path, machine: str) -> list[dict]:
    """The rows that an earlier run wrote, if there was one.

    Raises:
        InputError: if it ran on another machine or with other settings.
    """
    with refusing(f'--resume: {file} cannot be read: name another --out'):
        earlier = json.loads(file.read_bytes()) if file.exists() else dict(machine=machine, rows=[])
        if earlier['machine'] != machine:
            raise InputError(f'--resume: {file} is of other settings ({earlier["machine"]}): name another --out')
        return earlier['rows']


class CannotCompile(Exception):
    """torch.compile fails on a model."""


def measure_models(names: list[str], runtime: str, args: argparse.Namespace, rows: list[dict]) -> Iterator[list[dict]]:
    """Measure a baseline, which comes first, and models to compare with it: for each step and size, those that have no
    row yet. Models that torch cannot compile have none; those besides the baseline are added to ``args.left_out``."""
    done = {tuple(row[key] for key in KEYS) for row in rows}
    steps = STEPS[:1] if runtime in RUNTIMES else args.steps
    todo = {
        (step, size): left
        for step in steps
        for size in args.sizes
        if (left := [name for name in names if (name, names[0], runtime, step, '{}x{}'.format(*size)) not in done])
    }
    models = {name: build(name, runtime, args) for name in names if any(name in left for left in todo.values())}
    is_steady = runtime != 'compile' and args.device == 'cpu'  # after the first run
    warm_up = 1 if is_steady else 3
    for step in steps:
        peaks = {}
        for name in models:
            sizes = [size for size in args.sizes if name in todo.get((step, size), ())]
            try:
                peaks[name] = dict(zip(sizes, peak_memory(name, models[name], runtime, step, sizes, args)))
            except CannotCompile as error:
                print(f'{name:24s} {runtime:8s} {step:10s} is left out: torch cannot compile it ({error})', flush=True)
        args.left_out += [name for name in names[1:] if name in models.keys() - peaks.keys()]
        for size in args.sizes:
            left = [name for name in todo.get((step, size), []) if name in peaks]
            x = image(*size, args)
            repeats, seconds = dict.fromkeys(left, 1), {name: [] for name in left}
            for turn in range(warm_up + args.runs):
                for name in left:
                    if is_steady and max(seconds[name], default=0) >= LONG_SECONDS:
                        continue
                    elapsed = timed(models[name], x, step, repeats[name], args)
                    if turn >= warm_up:
                        seconds[name].append(elapsed)
                    elif turn == warm_up - 1:
                        repeats[name] = math.ceil(LEAST_SECONDS / elapsed)
            found = []
            for name in left:
                row = dict(
                    model=name,
                    baseline=names[0],
                    runtime=runtime,
                    step=step,
                    size='{}x{}'.format(*size),
                    pixels=math.prod(size),
                    seconds=statistics.median(seconds[name]),
                    least_seconds=min(seconds[name]),
                    images_per_second=args.batch / statistics.median(seconds[name]),
                    memory=peaks[name][size],
                    operations=operations(name, x, args),
                )
                if runtime in RUNTIMES:
                    row['difference'] = difference(name, models[name], x, args)
                    print(f'{name:24s} {runtime:8s} differs by {row["difference"]:.1e} from PyTorch', flush=True)
                if args.profile:
                    row['profile'] = profile(models[name], x, step, args)
                    if args.speeds and runtime == 'eager':
                        once = functools.partial(run, models[name], x, step, args)
                        row['least_time'] = vars(least_time(once, args.speeds))
                found.append(row)
                print(f'{name:24s} {runtime:8s} {step:10s} {row["size"]:>10s} {row["seconds"]:8.4f} s', flush=True)
            if found:
                yield found


def benchmarked() -> dict[str, str]:
    """Model -> baseline, from the field Benchmark of the metafiles. A model's name has no "_in1k"."""
    return {
        entry['Model'].removesuffix('_in1k'): entry['Baseline']
        for metafile in metafiles()
        for collection in metafile['Collections']
        for entry in collection.get('Benchmark', [])
    }


def metafiles() -> list[dict]:
    """The metafiles of all papers."""
    return [yaml.safe_load(file.read_text('utf-8')) for file in sorted(CONFIGS.glob('*/metafile.yml'))]


def config_file(model: str, row: str | None = None) -> tuple[Path, str | None]:
    """The config that a command line names, and its row.

    Raises:
        FileNotFoundError: if there is no such config.
    """
    if model.endswith('.py') and Path(model).is_file():
        return Path(model), row
    for file in (*sorted(CONFIGS.glob(f'*/{model}.py')), *CONFIGS.glob(f'*/{model}_in1k.py')):
        return file, None
    raise FileNotFoundError(f'there is no such config, and the baselines are {", ".join(BASELINES)}')


def backbone_config(model: str, row: str | None = None) -> dict:
    """The config of a model's backbone."""
    if model in BASELINES:
        return BASELINES[model]
    cfg = read_row(*config_file(model, row))
    config = dict(cfg.model.backbone)
    if 'Classifier' in cfg.model.get('type', ''):
        config.pop('out_indices', None)  # a classifier needs the last map only, a detector all
    return config


def eager(name: str, args: argparse.Namespace) -> nn.Module:
    """The backbone or whole model that a command line names, with initial weights.

    Raises:
        FileNotFoundError: if there is no such config.
        InputError: if a package that it needs is missing.
        ValueError: if it is to run on a backend, but has none, or if neck and heads do not fit the backbone.
    """
    if args.device.startswith('cuda:'):
        torch.cuda.set_device(args.device)  # Times and memory are those of the current GPU.
    torch.manual_seed(0)
    model, _, backend = name.partition(':')
    config = backbone_config(model, args.row)
    package = config['type'].partition('.')[0]
    if backend and package in (*PACKAGES, 'timm'):
        raise ValueError('only the backbones of mmattn have backends')
    if package == 'timm':
        backbone = timm.create_model(features_only=True, **{key: config[key] for key in config.keys() - {'type'}})
    else:
        if package in PACKAGES:
            require(package, name)
            require_models(package, name)
        backbone = MODELS.build({**config, 'init_cfg': None})
    if backend:
        backbone.set_backend(backend)
    if not args.heads:
        return backbone.to(args.device)
    file, row = config_file(args.heads, args.row)
    cfg = load_config(file, row=row)
    return Whole(cfg, backbone).to(args.device)


class Whole(nn.Module):
    """The neck and heads of a config on a backbone, as a function of images alone.

    Raises:
        ValueError: if the config has neither a detector nor a segmentor, or if neck or heads do not fit the backbone.
    """

    def __init__(self, cfg: Config, backbone: nn.Module) -> None:
        super().__init__()
        MMLogger.get_current_instance().setLevel('WARNING')  # not a line for each initialised weight
        self.is_detector = cfg.get('default_scope') == 'mmdet'
        if not self.is_detector and cfg.get('default_scope') != 'mmseg':
            raise ValueError('with --whole, the first model must be the config of a detector or segmentor')
        with torch.no_grad():
            backbone.eval()
            maps = backbone(torch.randn(1, 3, 64, 64))
        if [x.shape[2] for x in maps] != [16, 8, 4, 2]:
            raise ValueError('only backbones with maps of strides 4, 8, 16 and 32 can be exchanged')
        channels = [x.shape[1] for x in maps]
        if 'neck' in cfg.model:
            cfg.model.neck.in_channels = channels
        else:
            cfg.model.decode_head.in_channels = channels
            if cfg.model.get('auxiliary_head'):
                cfg.model.auxiliary_head.in_channels = channels[cfg.model.auxiliary_head.in_index]
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            model = MODELS.build({**cfg.model, 'backbone': dict(cfg.model.backbone, init_cfg=None)})
        model.init_weights()  # before training, the mask head has about as many boxes with each backbone
        model.backbone = backbone
        self.model = revert_sync_batchnorm(model)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, 3, H, W). Return the sum of the losses in training mode, else what the heads return."""
        samples = made_up(len(x), *x.shape[2:], self.is_detector, x.device)
        if not self.training:
            return self.model(x, samples, mode='tensor')
        return (self.model.parse_losses(self.model(x, samples, mode='loss'))[0],)


@functools.cache
def made_up(batch: int, height: int, width: int, is_detector: bool, device: torch.device) -> list:
    """For each image, eight objects with masks, or a map of random classes."""
    if is_detector:
        from mmdet.testing import demo_mm_inputs

        shapes = [(3, height, width)] * batch
        made = demo_mm_inputs(batch, shapes, [8] * batch, with_mask=True, device=device)['data_samples']
    else:
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        maps = torch.randint(10, (batch, 1, height, width), device=device)
        made = [SegDataSample(gt_sem_seg=PixelData(data=x)) for x in maps]
    for sample in made:
        sample.set_metainfo(dict.fromkeys(('img_shape', 'pad_shape', 'batch_input_shape'), (height, width)))
    return made


def build(name: str, runtime: str, args: argparse.Namespace) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """That model in a runtime."""
    model = eager(name, args) if runtime not in RUNTIMES else deployed(name, args)
    if runtime == 'compile':
        torch.fx.experimental._config.use_duck_shape = False  # the first image may be square
        several = len(args.sizes) > 1
        compile = functools.partial(torch.compile, dynamic=several, options=dict(layout_optimization=False))
        if not args.whole:
            return compile(model)
        model.model.backbone = compile(model.model.backbone)
    if runtime not in RUNTIMES:
        return model
    graphs = {}
    for height, width in args.sizes:
        file = Path(args.graphs, f'{name.replace("/", "-")}-{height}x{width}.onnx')
        if not file.exists():  # the process that measures memory reads it again
            if is_detector(model):
                from mmattn_deploy.detectors import TraceableDetector

                model = TraceableDetector(model)
            with torch.no_grad():
                write_onnx(torch.export.export(model, (image(height, width, args),), strict=False), file)
        graphs[height, width] = RUNTIMES[runtime](file, args.threads)
    return lambda x: graphs[tuple(x.shape[2:])](x)


def deployed(name: str, args: argparse.Namespace) -> nn.Module:
    """The model of which a graph is made: a backbone, a segmentor, or a detector that finds objects."""
    model = eager(name, args)
    model.eval()
    if not args.heads:
        return model
    if is_detector(model.model):
        require_project('deploy', 'the graph of a detector')
        from mmattn_deploy.detectors import spread_scores

        spread_scores(model.model, torch.randn(1, 3, 256, 256))
    return model.model


def is_detector(model: nn.Module) -> bool:
    """Whether this is a detector of MMDetection."""
    return any(hasattr(model, name) for name in ('bbox_head', 'roi_head'))


def difference(name: str, graph: Callable, x: Tensor, args: argparse.Namespace) -> float:
    """Largest difference between the outputs of a graph and of its model, divided by the largest output. Of a detector,
    the share of the objects that only one of them finds."""
    model = deployed(name, args)
    if not is_detector(model):
        return largest_difference(model, graph, [tuple(x.shape[2:])])[0]
    from mmattn_deploy.detectors import detect, largest_differences

    expected, found = detect(model, x), graph(x)
    print(f'{name:24s} finds {len(expected[0])} objects, its graph {len(found[0])}', flush=True)
    return largest_differences(expected, found)[0] / max(len(expected[0]), len(found[0]), 1)


def run(model: Callable, x: Tensor, step: str, args: argparse.Namespace) -> None:
    """One inference, or one forward and backward pass, which leaves gradients behind."""
    training = step == 'training'
    if isinstance(model, nn.Module) and (training or model.training):  # not a graph of ONNX
        if model.training != training:  # which is no part of a step
            model.train(training)
        model.zero_grad(set_to_none=True)
    half = torch.autocast(x.device.type, getattr(torch, args.dtype)) if args.dtype != 'float32' else nullcontext()
    with torch.set_grad_enabled(training):
        with half:
            outputs = model(x)
        if training:
            sum(out.float().square().mean() for out in outputs).backward()


def timed(model: Callable, x: Tensor, step: str, repeats: int, args: argparse.Namespace) -> float:
    """Mean seconds of a step over several repeats."""
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None
    synchronize()
    clock = CLOCKS[args.clock]
    started = clock()
    for _ in range(repeats):
        run(model, x, step, args)
    synchronize()
    return (clock() - started) / repeats


def operator_times(model: Callable, x: Tensor, step: str, args: argparse.Namespace) -> list[tuple[str, int, float]]:
    """Name, calls and microseconds of all operators, on a GPU kernels, by their own time, the longest first."""
    device = 'device' if torch.__version__ >= (2, 3) else 'cuda'
    kind, time_of = ('CUDA', f'self_{device}_time_total') if x.is_cuda else ('CPU', 'self_cpu_time_total')
    with torch.profiler.profile() as profiler:
        timed(model, x, step, 1, args)
    found = [
        (event.key, event.count, getattr(event, time_of))
        for event in profiler.key_averages()
        if event.device_type.name == kind and not getattr(event, 'is_user_annotation', False)
    ]
    return sorted(found, key=lambda row: -row[2])


def profile(model: Callable, x: Tensor, step: str, args: argparse.Namespace) -> list[tuple[str, int, float]]:
    """Name, calls and share of time of the ten operators that take most time themselves."""
    found = operator_times(model, x, step, args)
    total = sum(time for *_, time in found)
    return [(name, count, time / total) for name, count, time in found[:10]]


def profile_table(row: dict) -> str:
    """A Markdown table of the operators of a row."""
    title = f'{row["model"]}, {row["runtime"]}, {row["step"]}, {row["size"]}, {row["seconds"] * 1e3:.1f} ms'
    lines = [f'| `{name[:90]}` | {count} | {share:.1%} |\n' for name, count, share in row['profile']]
    if 'least_time' in row:
        products, operators = (row['least_time'][key] * 1e3 for key in ('products', 'operators'))
        title += f'\n\nLeast time: {products:.1f} ms for the multiply-adds, {operators:.1f} ms for all operators.'
    return f'{title}\n\n| operator | calls | share of self time |\n|---|---|---|\n{"".join(lines)}'


def peak_memory(
    name: str, model: Callable, runtime: str, step: str, sizes: list[tuple[int, int]], args: argparse.Namespace
) -> list[int]:
    """For each size, the bytes that a step needs besides the model: on the CPU those of a new process."""
    if args.device.startswith('cuda'):
        return _measure_memory(functools.partial(_peaks_on_gpu, model, step, sizes, args))
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
        measure = functools.partial(_measure_in_this_process, name, runtime, step, sizes, args)
        return pool.submit(_measure_memory, measure).result()


def _measure_memory(measure: Callable[[], list[int]]) -> list[int]:
    try:
        return measure()
    except torch._dynamo.exc.TorchDynamoException as error:  # some have no copy that another process can read
        raise CannotCompile(describe(error)[:200]) from None


def _peaks_on_gpu(model: Callable, step: str, sizes: list[tuple[int, int]], args: argparse.Namespace) -> list[int]:
    """torch counts the bytes of tensors alone, so other models in the process do not matter."""
    peaks = []
    for size in sizes:
        run(model, image(*size, args), step, args)  # libraries load what they need, and graphs are compiled
        peaks.append(peak(model, size, step, args))
    return peaks


def _measure_in_this_process(
    name: str, runtime: str, step: str, sizes: list[tuple[int, int]], args: argparse.Namespace
) -> list[int]:
    torch.set_num_threads(args.threads)
    # Large blocks are returned to the system at once. Otherwise gaps in the heap count as memory, and differ by run.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)
    model = build(name, runtime, args)
    if runtime not in RUNTIMES:
        run(model, image(64, 64, args), step, args)  # libraries load what they need
        model.zero_grad(set_to_none=True)
    return [peak(model, size, step, args) for size in sizes]


def peak(model: Callable, size: tuple[int, int], step: str, args: argparse.Namespace) -> int:
    """Bytes that a step needs."""
    if isinstance(model, nn.Module):
        model.zero_grad(set_to_none=True)
    gc.collect()
    if cuda := args.device.startswith('cuda'):
        idle = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        idle = _status('VmRSS')
        Path('/proc/self/clear_refs').write_bytes(b'5')  # resets the peak
    run(model, image(*size, args), step, args)
    return (torch.cuda.max_memory_allocated() if cuda else _status('VmHWM')) - idle


def _status(key: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    return int(re.search(rf'{key}:\s+(\d+) kB', Path('/proc/self/status').read_text('utf-8'))[1]) * 1024


def image(height: int, width: int, args: argparse.Namespace) -> Tensor:
    return torch.randn(args.batch, 3, height, width, device=args.device)


def operations(name: str, x: Tensor, args: argparse.Namespace) -> float:
    """Multiply-adds for one image."""
    # A GPU's kernels are not counted. A detector's boxes and the choice of a backend need values.
    device = 'cpu' if args.heads or ':' in name else 'meta'
    model = eager(name, args).to(device).requires_grad_(False)
    model.eval()
    with unpadded(model):
        return count_operations(lambda: model(x[:1].to(device)))


def table(rows: list[dict]) -> str:
    """A Markdown table of the figures, their ratios to the baseline, and their growth over the sizes."""
    lines = [
        '| step | model | runtime | size | time | ratio | minimum | ratio | images/s | memory | ratio | operations | '
        'ratio | growth |',
        f'|{"---|" * 14}',
    ]
    for row in rows:
        same = [r for r in rows if all(r[key] == row[key] for key in ('model', 'baseline', 'runtime', 'step'))]
        beside = [r for r in rows if all(r[key] == row[key] for key in ('baseline', 'runtime', 'step', 'size'))]
        baseline = next((r for r in beside if r['model'] == r['baseline']), {})  # none if torch cannot compile it
        growth = ''
        if len(same) > 1 and row is same[-1]:
            growth = ', '.join(f'n^{exponent(same, key):.2f}' for key in ('seconds', 'memory', 'operations'))
        cells = [
            *(row[key] for key in ('step', 'model', 'runtime', 'size')),
            *(text for key in ('seconds', 'least_seconds') for text in (in_ms(row[key]), ratio(row, baseline, key))),
            f'{row["images_per_second"]:.4g}',
            f'{row["memory"] / 2**30:.2f} GiB',
            ratio(row, baseline, 'memory'),
            f'{row["operations"] / 1e9:.1f} G',
            ratio(row, baseline, 'operations'),
            growth,
        ]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def ratio(row: dict, baseline: dict, key: str) -> str:
    """A figure divided by the baseline's, if there is one."""
    return f'{row[key] / baseline[key]:.2f}' if baseline else '-'


def draw(rows: list[dict], file: Path) -> None:
    """Draw time, memory and time per multiply-add over the side of the image: a line of panels per runtime and step."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    lines: dict[tuple[str, str], dict[str, dict[int, dict]]] = {}
    for row in rows:
        lines.setdefault((row['runtime'], row['step']), {}).setdefault(row['model'], {})[row['pixels']] = row
    # Baselines have the colour of the first model that is compared with them.
    pairs = {row['baseline']: row['model'] for row in reversed(rows) if row['model'] != row['baseline']}
    ours = dict.fromkeys(row['model'] for row in rows if row['model'] not in pairs)
    colours = {name: f'C{number % 10}' for number, name in enumerate(ours)}
    panels: dict[str, Callable[[dict], float]] = {
        'time, s': lambda row: row['seconds'],
        'memory, GiB': lambda row: row['memory'] / 2**30,
        'time per multiply-add, ps': lambda row: row['seconds'] / row['operations'] * 1e12,
    }
    height = 4.2 * len(lines)
    figure, grid = plt.subplots(len(lines), 3, figsize=(13, height + 0.8), layout='constrained', squeeze=False)
    ticks = sorted({row['pixels'] ** 0.5 for row in rows})
    for axes, ((runtime, step), models) in zip(grid, lines.items()):
        for axis, (label, figure_of) in zip(axes, panels.items()):
            for name in sorted(models, key=lambda name: (list(ours).index(pairs.get(name, name)), name in pairs)):
                points = sorted((pixels**0.5, figure_of(row)) for pixels, row in models[name].items())
                style = 'o--' if name in pairs else 'o-'
                axis.plot(
                    *zip(*points), style, label=in_figure(name), color=colours[pairs.get(name, name)], markersize=3
                )
            axis.set(xscale='log', xlabel='square root of the number of pixels')
            axis.set_ylabel(f'{step}, {runtime}: {label}')
            axis.set_xticks(ticks, [f'{tick:.0f}' for tick in ticks])
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3, which='both')
            if axis is not axes[-1]:
                axis.set_yscale('log')
                axis.yaxis.set_major_formatter('{x:g}')
        axes[-1].set_ylim(bottom=0)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=6)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def in_ms(seconds: float) -> str:
    return f'{seconds * 1e3:.{0 if seconds > 0.1 else 2}f} ms'


def exponent(rows: list[dict], key: str) -> float:
    """The exponent e of a fit of the figures by pixels ** e."""
    return np.polyfit(np.log([row['pixels'] for row in rows]), np.log([row[key] for row in rows]), 1)[0]


def size(text: str) -> tuple[int, int]:
    """'800x1333', height first."""
    match = re.fullmatch(r'(\d+)x(\d+)', text)
    if not match or not int(match[1]) or not int(match[2]):
        raise argparse.ArgumentTypeError(f'a size is HEIGHTxWIDTH, not {text!r}')
    return int(match[1]), int(match[2])


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith('cuda') else platform.processor() or 'CPU'


if __name__ == '__main__':
    run_tool(main)
