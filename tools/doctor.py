"""Say why a model does not learn, for example after its backbone was exchanged and mAP is 0.

    python tools/doctor.py CONFIG

A batch of the training is learned by heart in 50 steps, with the optimizer of the config and a constant rate. A healthy
model learns it: its loss falls to less than half. The tool prints versions, labels, images, weights, rates, gradients
and changes per part of the model, and parts of the loss. It names the likely cause of a mistake in a sentence; then the
exit status is 1. Remarks are on what may be as you want it, and leave the exit status 0.
"""

import argparse
import importlib
import sys
import tempfile

from mmguard.doctor import Findings, examine
from mmguard.packages import PACKAGES
from mmguard.runs.configs import add_config, load_config
from mmguard.runs.running import run_tool, running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument(
        '--steps', type=int, default=50, help='on one batch (default: 50; with less than 25, it may not be learned)'
    )
    args = parser.parse_args()
    if args.steps < 1:
        sys.exit(f'--steps must be 1 or more, not {args.steps}.')
    print('versions:', ', '.join(versions()))
    with tempfile.TemporaryDirectory() as folder:
        cfg = load_config(args.config, args.cfg_options, row=args.row, work_dir=folder)
        with running(cfg):
            found = examine(cfg, args.steps)
    print(report(found))
    if found.causes:
        sys.exit(1)


def versions() -> list[str]:
    found = []
    for name in ('torch', 'timm', *PACKAGES):
        try:
            found.append(f'{name} {importlib.import_module(name).__version__}')
        except ModuleNotFoundError:
            found.append(f'no {name}')
    return found


def report(found: Findings) -> str:
    """The findings as text."""
    labels = found.labels or {}
    lines = [f'labels: {", ".join(f"{name} {count}" for name, count in labels.items())}'] * (found.labels is not None)
    lines += ['images, mean and standard deviation of each channel:']
    lines += [f'    {mean:8.3f} {std:8.3f}' for mean, std in found.images]
    lines += [f'weights: {found.weights or "random"}']
    if found.weights:
        (used, given), (taken, count) = found.used, found.taken
        lines += [f'    {used} of its {given} tensors are in the model; {taken} of {count} of the backbone are from it']
    lines += ['rate, weight decay: parameters']
    lines += [f'    {rate:.2e} {decay:.2e}: {number:,}' for (rate, decay), number in found.rates.items()]
    lines += [f'maps of the backbone, standard deviation: {", ".join(f"{each:.3g}" for each in found.maps)}']
    lines += [f'{"part":34s} {"trained":>12s} {"frozen":>12s} {"gradient":>10s} {"change":>10s}']
    lines += [
        f'{part:34s} {stage.trained:12,} {stage.frozen:12,} {stage.gradient:10.3g} {stage.change:10.2e}'
        for part, stage in found.stages.items()
    ]
    losses = found.losses[:: max(len(found.losses) // 5, 1)]
    lines += [f'loss on one batch: {", ".join(f"{loss:.3g}" for loss in losses)}, last {found.losses[-1]:.3g}']
    lines += [f'    {name}: {100 * share:.3g} %' for name, share in found.shares.items() if len(found.shares) > 1]
    if found.causes:
        lines += [f'\nLikely cause: {found.causes[0]}.', *(f'Also: {cause}.' for cause in found.causes[1:])]
    else:
        lines += ['\nNo mistake was found: the model learns a batch by heart.']
    lines += [f'Remark: {remark}.' for remark in found.remarks]
    return '\n'.join(lines)


if __name__ == '__main__':
    run_tool(main)
