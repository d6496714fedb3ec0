"""Publish the classifiers that `make real` has trained on Tiny ImageNet: a folder each, see tools/publish.py.

    python projects/lab/tools/real_weights.py work_dirs/real/classifiers --out work_dirs/real/weights

Each model has one whole training, with the best rate and seed 0. If it has several, the best one is published. A model
that cannot be published is named, and the others are.
"""

import argparse
from functools import partial
from pathlib import Path

from mmengine.config import Config
from real_report import best, finished

from mmattn.publishing import publish
from mmguard.errors import CheckpointError, InputError
from mmguard.runs.running import run_tool
from mmguard.runs.trained import read_trained

CONFIG = 'tiny-imagenet.py'  #: that each run keeps in its folder
DATA = (
    'Tiny ImageNet, 100 000 photos of 200 classes at 64 x 64. They are photos of ImageNet, whose terms allow research '
    'and teaching only'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dir', type=Path, help='of projects/lab/tools/compare.py')
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    models = finished(args.work_dir / 'tiny-imagenet')
    if not models:
        raise InputError(f'{args.work_dir} has no finished classifier of Tiny ImageNet: make real trains them')
    for model, runs in sorted(models.items()):
        run = best(runs)
        if run.diverged:
            print(f'{model} is left out: its training in {run.folder} diverged')
            continue
        figures = {
            'top-1': f'{run.metrics["accuracy/top1"]:.1f}',
            'top-5': f'{run.metrics["accuracy/top5"]:.1f}',
            'rate': f'{run.rate:g}',
            'minutes': f'{run.seconds / 60:.0f}',
        }
        cfg = Config.fromfile(run.folder / CONFIG)  # as it was trained: rate, seed and options
        for key in ('work_dir', 'load_from', 'resume'):  # An interrupted training notes where it was resumed from.
            cfg.pop(key, None)
        try:
            read = partial(read_trained, cfg, run.checkpoint)
            publish(cfg, f'{model} of Tiny ImageNet', read, args.out / model, figures, DATA, 'apache-2.0')
        except CheckpointError as error:
            print(f'{model} is left out: {error}')
        else:
            print(f'{args.out / model} is written')


if __name__ == '__main__':
    run_tool(main)
