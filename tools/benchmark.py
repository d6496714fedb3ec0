"""Time the paths of the ELSA operator against unfolding, run after run (A B A B), forward and backward.

    python tools/benchmark.py

at the three ELSA stages of ELSA-Swin-T for a 512 x 512 picture, and for the whole backbone with either path.
"""
import argparse
import statistics
import time
from collections.abc import Callable

import torch

from mmattn.backbones import ELSASwin
from mmattn.ops import elsa


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--runs', type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f'torch {torch.__version__}, {args.threads} threads, median of {args.runs}')
    print(f'{"":44s} {"unfolding":>11s} {"shifted":>11s} {"ratio":>7s}')
    for side, heads in ((128, 3), (64, 6), (32, 12)):
        logits, value = torch.randn(1, side, side, heads, 49), torch.randn(1, side, side, heads * 32)
        ghost = torch.randn(heads * 32, 7, 7)
        inputs = [t.requires_grad_() for t in (logits, value, ghost)]
        compare(f'operator {side} x {side} x {heads * 32}', args.runs, lambda path: path(logits, value, None, ghost), inputs)
    backbone, picture = ELSASwin(arch='tiny', drop_path_rate=0.), torch.randn(1, 3, 512, 512)

    def run(path: Callable) -> torch.Tensor:
        elsa._select = lambda value: path
        return sum(out.sum() for out in backbone(picture))

    compare('ELSA-Swin-T 512 x 512', args.runs, run, list(backbone.parameters()))


def compare(name: str, runs: int, forward: Callable, inputs: list[torch.Tensor]) -> None:
    paths = (elsa.elsa_attention_reference, elsa.elsa_attention_shifted)

    def inference(path: Callable) -> None:
        with torch.no_grad():
            forward(path)

    def training(path: Callable) -> None:
        torch.autograd.grad(forward(path).sum(), inputs)

    for what, step in (('forward', inference), ('forward and backward', training)):
        times: dict[Callable, list[float]] = {path: [] for path in paths}
        for run in range(runs + 1):
            for path in paths:
                started = time.perf_counter()
                step(path)
                if run:  # the first is a warm-up
                    times[path].append(time.perf_counter() - started)
        slow, fast = (statistics.median(times[path]) * 1e3 for path in paths)
        print(f'{name + ", " + what:44s} {slow:8.1f} ms {fast:8.1f} ms {slow / fast:5.1f} x', flush=True)


if __name__ == '__main__':
    main()
