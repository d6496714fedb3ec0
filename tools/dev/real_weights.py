"""Publish the classifiers that `make real` has trained on Tiny ImageNet: a folder each, see tools/publish.py.

    python tools/dev/real_weights.py work_dirs/real/classifiers --out work_dirs/real/weights

Each model has one whole training, with the best rate and seed 0.
"""

import argparse
import json
from pathlib import Path

from mmengine.config import Config

from mmattn.runs.publishing import publish
from mmattn.runs.running import run_tool

CONFIG = 'tiny-imagenet.py'  #: that each run keeps in its folder
DATA = (
    'Tiny ImageNet, 100 000 photos of 200 classes at 64 x 64. They are photos of ImageNet, whose terms allow research '
    'and teaching only'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dir', type=Path, help='of tools/compare.py')
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    for result in sorted((args.work_dir / 'tiny-imagenet').glob('*/rate*_seed0/result.json')):
        model = result.parents[1].name
        found = json.loads(result.read_text())
        figures = {
            'top-1': f'{found["metrics"]["accuracy/top1"]:.1f}',
            'top-5': f'{found["metrics"]["accuracy/top5"]:.1f}',
            'rate': f'{found["rate"]:g}',
            'minutes': f'{found["seconds"] / 60:.0f}',
        }
        cfg = Config.fromfile(result.parent / CONFIG)  # as it was trained: rate, seed and options
        cfg.pop('work_dir')
        [checkpoint] = result.parent.glob('iter_*.pth')
        publish(cfg, f'{model} of Tiny ImageNet', checkpoint, args.out / model, figures, DATA)
        print(f'{args.out / model} is written')


if __name__ == '__main__':
    run_tool(main)
