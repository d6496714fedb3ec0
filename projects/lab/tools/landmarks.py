"""What mean-shift attention by landmarks saves, and how far it is from the exact one.

    python projects/lab/tools/landmarks.py speed --sizes 224x224 512x512 800x1333
    python projects/lab/tools/landmarks.py distance configs/msf/msf-vit-s_in1k.py  # random weights, an image of noise
    python projects/lab/tools/landmarks.py distance CONFIG CHECKPOINT IMAGES...

speed: a layer of MSF-ViT-S (384 channels, 6 heads) on the maps of images of these sizes, in float32, batch 1. All forms
take turns in one process. Times are processor time of one thread, minimum and median; operations are the layer's.

distance: of the weighted means in each block, before the probe is subtracted: |by landmarks - exact| / |exact|, over
all heads and tokens of the images. Each block gets the exact map of the block before. Images are resized.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mmcv
import torch
from attention_speed import forward, forward_and_backward
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from mmattn.analysis import count_operations
from mmattn.analysis.complexity import unpadded
from mmattn.layers import MeanShiftAttention
from mmattn.weights.files import read_file
from mmguard.errors import InputError
from mmguard.runs.configs import add_row
from mmguard.runs.rows import read_row
from mmguard.runs.running import run_tool

SIDES = (0, 4, 8, 16, 24)  #: of the grid of landmarks; 0: exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    speed = commands.add_parser('speed')
    speed.add_argument('--runs', type=int, default=9)
    speed.add_argument('--sizes', nargs='+', default=['224x224', '512x512', '800x1333'], metavar='HEIGHTxWIDTH')
    speed.add_argument('--sides', nargs='+', type=int, default=SIDES, help='of grids of landmarks; 0: exact')
    distance = commands.add_parser('distance')
    add_row(distance)
    distance.add_argument('checkpoint', nargs='?', help='default: random weights')
    distance.add_argument('images', nargs='*', help='those of CHECKPOINT')
    distance.add_argument('--size', nargs=2, type=int, default=(512, 512), metavar=('HEIGHT', 'WIDTH'))
    args = parser.parse_args()
    if args.command == 'speed':
        torch.set_num_threads(1)
        print_speed([tuple(map(int, size.split('x'))) for size in args.sizes], args.sides, args.runs)
    else:
        print_distance(args, *args.size)


def print_speed(sizes: list[tuple[int, int]], grids: list[int], runs: int) -> None:
    print(
        '| image | tokens | landmarks | operations / M | forward / ms, min, median | and backward / ms, min, median |'
    )
    print('|---|---:|---:|---:|---:|---:|')
    for height, width in sizes:
        sides = math.ceil(height / 16), math.ceil(width / 16)
        x = torch.randn(1, *sides, 384)
        layers = {side: MeanShiftAttention(384, 6, landmarks=side) for side in grids}
        steps = [step(layer, x) for layer in layers.values() for step in (forward, forward_and_backward)]
        for step in steps:
            step()
        times = zip(*([processor_time(step) for step in steps] for _ in range(runs)))
        times = [f'{min(one):.1f}, {statistics.median(one):.1f}' for one in times]
        for i, (side, layer) in enumerate(layers.items()):
            with unpadded(layer):
                operations = count_operations(partial(layer, x)) / 1e6
            print(
                f'| {height} x {width} | {math.prod(sides)} | {side**2 or "exact"} | {operations:.0f} | {times[2 * i]} '
                f'| {times[2 * i + 1]} |',
                flush=True,
            )


def processor_time(step: Callable[[], None]) -> float:
    """In milliseconds."""
    start = time.process_time()
    step()
    return 1e3 * (time.process_time() - start)


def print_distance(args: argparse.Namespace, height: int, width: int) -> None:
    torch.manual_seed(0)
    cfg = read_row(args.config, args.row)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    backbone = model.backbone.eval()
    blocks = [getattr(block, 'attn', None) for block in getattr(backbone, 'blocks', [])]
    if not blocks or not all(isinstance(attn, MeanShiftAttention) for attn in blocks):
        raise InputError(f'{args.config} has no ViT with MeanShiftAttention in all blocks')
    x = torch.randn(1, 3, height, width)
    if args.checkpoint:
        if not args.images:
            raise InputError('distance with a checkpoint needs images, too')
        model.load_state_dict(read_file(args.checkpoint)['state_dict'])
        normalised = cfg.get('data_preprocessor') or cfg.model.data_preprocessor  # MMPretrain's stands beside the model
        mean, std = (torch.tensor(normalised[key]).view(3, 1, 1) for key in ('mean', 'std'))
        images = (mmcv.imresize(mmcv.imread(Path(file), channel_order='rgb'), (width, height)) for file in args.images)
        x = torch.stack([(torch.from_numpy(image).permute(2, 0, 1).float() - mean) / std for image in images])
    found = {side: [] for side in (1, *SIDES[1:])}
    for attn in blocks:
        attn.register_forward_hook(lambda attn, inputs, _: measure(attn, inputs[0], found))
    with torch.no_grad():
        backbone(x)
    print(f'| landmarks | {" | ".join(f"block {i + 1}" for i in range(len(blocks)))} |')
    print('|---:' * (1 + len(blocks)) + '|')
    for side, values in found.items():
        print(f'| {side**2} | {" | ".join(f"{value:.3f}" for value in values)} |')


def measure(attn: nn.Module, x: Tensor, found: dict[int, list[float]]) -> None:
    """Append the distance for each number of landmarks. x: (B, H, W, C), the input of the attention."""
    projected = dict(zip(attn.matrices, attn.pre_proj(x.flatten(1, 2)).chunk(len(attn.matrices), -1)))
    q, k, v = (projected[letter].unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for letter in attn.sharing[:3])
    exact = attn.attend(q, k, v, None, None, x.shape[1:3])
    for side, values in found.items():
        attn.landmarks = side
        values.append(((attn.attend(q, k, v, None, None, x.shape[1:3]) - exact).norm() / exact.norm()).item())
    attn.landmarks = 0


if __name__ == '__main__':
    run_tool(main)
