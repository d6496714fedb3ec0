"""Draw losses and scores of trainings over their steps.

python tools/curves.py work_dirs/detector --out curves.png
python tools/curves.py work_dirs/detector work_dirs/detector_longer --keys coco/bbox_mAP --out both.png
"""

import argparse
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np

from mmguard.curves import Curve, is_score, largest, main_scores, points, read_curves
from mmguard.errors import InputError, near_misses
from mmguard.outputs import check_output, whole_file
from mmguard.runs.running import run_tool
from mmguard.text import in_figure

#: parts of the loss that are drawn; a model with losses in every decoder layer has dozens
MOST_PARTS = 9
#: of the first key, the second ..., where several trainings are drawn; markers are for scores only
STYLES = [(line, marker) for marker, line in product('os^D', ('-', '--', ':', '-.'))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', type=Path, help='work folders of trainings')
    parser.add_argument('--out', type=Path, required=True, help='image to write, .png, .pdf or .svg')
    parser.add_argument(
        '--keys',
        nargs='+',
        help='scores to draw (default: all, but not those of parts, such as mAP_50 beside mAP, and single classes)',
    )
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
            hint = near_misses(key, found) or f': there are {", ".join(found) or "none"}'
            raise InputError(f'--keys names {key}, which no training has{hint}')
    names = short_names(args.folders)
    runs = dict(zip(names, runs.values()))
    losses, scores = ['loss'], args.keys or main_scores(found)
    of_parts = ''
    if len(runs) == 1:
        (curves,) = runs.values()
        parts = {key: curve for key, curve in curves.items() if 'loss' in key and key != 'loss'}
        losses += largest(parts, MOST_PARTS)
        if len(parts) > MOST_PARTS:
            of_parts = f', with the {MOST_PARTS} largest of {len(parts)} parts'
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), sharex=True, layout='constrained')
    rows = max(draw(left, runs, losses), draw(right, runs, scores, markers=True))
    figure.set_figheight(5 + 0.2 * rows)
    left.set(title=f'loss of the training{of_parts}', ylabel='loss')
    right.set(title='scores of the validation', ylabel='score')
    with whole_file(args.out) as part:
        figure.savefig(part, dpi=110)
    print(args.out)


def short_names(folders: Sequence[Path]) -> list[str]:
    """The paths of work folders below the folder that all have in common."""
    paths = [os.path.abspath(folder) for folder in folders]
    root = os.path.commonpath(list(map(os.path.dirname, paths)))
    return [os.path.relpath(path, root) for path in paths]


def draw(axis: plt.Axes, runs: dict[str, dict[str, Curve]], keys: Sequence[str], markers: bool = False) -> int:
    """Draw curves with a legend below them, and return the rows of the legend.

    Lines of one training differ in colour. Of several, each has its colour, and each key its style.
    """
    several = len(runs) > 1
    number = len(runs) if several else len(keys)
    colors = plt.get_cmap('tab10').colors if number <= 10 else plt.get_cmap('turbo')(np.linspace(0.05, 0.95, number))
    labels = []
    for i, (name, curves) in enumerate(runs.items()):
        for j, key in enumerate(keys):
            line, symbol = STYLES[j % len(STYLES) if several else 0]
            labels.append(in_figure(f'{name}: {key}' if several else key))
            axis.plot(
                *points(curves.get(key, {})),
                ls=line,
                marker=symbol if markers else '',
                ms=5,
                color=colors[i if several else j],
                label=labels[-1],
                lw=2 if key == 'loss' else 1.2,
            )
    axis.set_xlabel('training step')
    axis.grid(alpha=0.3)
    if not labels:
        axis.text(0.5, 0.5, 'no scores yet', transform=axis.transAxes, ha='center')
        return 0
    columns = max(1, min(4, 90 // (max(map(len, labels)) + 5)))
    axis.legend(fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.12), ncols=columns, frameon=False)
    return -(-len(labels) // columns)


if __name__ == '__main__':
    run_tool(main)
