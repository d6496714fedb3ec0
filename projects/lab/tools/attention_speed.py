"""Time of neighbourhood attention divided by that of window attention, at the four stages of DiNAT-T.

    python projects/lab/tools/attention_speed.py --threads 2

Both layers have 7 x 7 neighbours or windows, the same channels and heads, and projections. Window attention is that of
Swin Transformer, with scaled_dot_product_attention of torch. They run in turn; the table has ratios of the medians.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmattn.layers import NeighbourhoodAttention, WindowAttention
from mmguard.runs.running import run_tool

SIZES = ((256, 256), (512, 512), (800, 1333))
#: stride -> channels and heads of DiNAT-T, and the largest dilation of its blocks for images of 224 x 224
STAGES = {4: (64, 2, 8), 8: (128, 4, 4), 16: (256, 8, 2), 32: (512, 16, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument('--runs', type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print('| image | stride | dilation | window attention, forward / ms | ratio forward | ratio forward and backward |')
    print('|---|---:|---:|---:|---:|---:|')
    for height, width in SIZES:
        for stride, (dim, heads, largest) in STAGES.items():
            x = torch.randn(1, math.ceil(height / stride), math.ceil(width / stride), dim)
            for dilation in sorted({1, largest}):
                layers = WindowAttention(dim, heads), NeighbourhoodAttention(dim, heads, dilation=dilation)
                (windows, ours), (windows_both, ours_both) = (
                    medians([step(layer, x) for layer in layers], args.runs) for step in (forward, forward_and_backward)
                )
                print(
                    f'| {height} x {width} | {stride} | {dilation} | {1e3 * windows:.1f} | {ours / windows:.2f} '
                    f'| {ours_both / windows_both:.2f} |',
                    flush=True,
                )


def forward(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def forward_and_backward(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    x = x.clone().requires_grad_()

    def run() -> None:
        layer(x).sum().backward()

    return run


def medians(steps: list[Callable[[], None]], runs: int) -> list[float]:
    """The median time of each step in seconds. They run in turn, each often enough to take a twentieth of a second."""
    repeats = []
    for step in steps:
        step()
        repeats.append(math.ceil(0.05 / timed(step, 1)))
    times = [[timed(step, count) for step, count in zip(steps, repeats)] for _ in range(runs)]
    return [statistics.median(one) for one in zip(*times)]


def timed(step: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


if __name__ == '__main__':
    run_tool(main)
