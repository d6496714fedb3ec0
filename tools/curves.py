"""Draw losses and scores of trainings over their steps.

python tools/curves.py work_dirs/detector --out curves.png
python tools/curves.py work_dirs/detector work_dirs/detector_longer --keys coco/bbox_mAP --out both.png
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

from mmattn.analysis.curves import is_score, points, read_curves
from mmattn.errors import InputError
from mmattn.runs.outputs import check_output, whole_file
from mmattn.runs.running import run_tool
from mmattn.text import in_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', type=Path, help='work folders of trainings')
    parser.add_argument('--out', type=Path, required=True, help='image to write, .png, .pdf or .svg')
    parser.add_argument('--keys', nargs='+', help='scores to draw (default: all, but not those of single classes)')
    args = parser.parse_args()
    if args.out.suffix not in ('.png', '.pdf', '.svg'):
        raise InputError(f'--out must name a .png, .pdf or .svg file, not {args.out}')
    check_output(args.out)
    runs = {folder: read_curves(folder) for folder in args.folders}
    for folder, curves in runs.items():
        if 'loss' not in curves:
            raise InputError(f'{folder} has no log of a training: name the folder that has TIME/vis_data/scalars.json')
    found = sorted({key for curves in runs.values() for key in curves if is_score(key)})
    for key in args.keys or ():
        if key not in found:
            raise InputError(f'--keys names {key}, which no training has: there are {", ".join(found) or "none"}')
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout='constrained')
    for folder, curves in runs.items():
        parts = sorted(key for key in curves if 'loss' in key and key != 'loss') if len(runs) == 1 else []
        before = '' if len(runs) == 1 else f'{folder}: '
        for key in ['loss', *parts]:
            left.plot(*points(curves[key]), label=in_figure(before + key), lw=2 if key == 'loss' else 1)
        for key in args.keys or found:
            right.plot(*points(curves.get(key, {})), 'o-', label=in_figure(before + key))
    left.set(title='training', ylabel='loss')
    right.set(title='validation', ylabel='score')
    for axis in (left, right):
        axis.set(xlabel='training step')
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    with whole_file(args.out) as part:
        figure.savefig(part, dpi=110)
    print(args.out)


if __name__ == '__main__':
    run_tool(main)
