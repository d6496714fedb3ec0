"""The main job on toy data: train, test and look at a small ELSA-Swin Mask R-CNN and UperNet.

    make demo

Everything goes to --work-dir (default: work_dirs/demo). Run again, it goes on where it stopped; remove the folder to
start afresh.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
#: name -> config, and the metrics to show: key in MMEngine's logs -> (title, factor to a fraction of 1)
MODELS = {
    'mask-rcnn': (
        'configs/toy/mask-rcnn_elsa-swin-toy_fpn.py',
        {
            'coco/bbox_mAP_50': ('box AP50', 1),
            'coco/bbox_mAP': ('box AP', 1),
            'coco/segm_mAP_50': ('mask AP50', 1),
            'coco/segm_mAP': ('mask AP', 1),
        },
    ),
    'upernet': (
        'configs/toy/elsa-swin-toy_upernet.py',
        {'mIoU': ('mIoU', 0.01), 'mAcc': ('mean accuracy', 0.01), 'aAcc': ('pixel accuracy', 0.01)},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work-dir', type=Path, default=ROOT / 'work_dirs' / 'demo')
    out = parser.parse_args().work_dir.resolve()
    started = time.time()
    out.mkdir(parents=True, exist_ok=True)
    data = out / 'data'
    os.environ.update(COCO_ROOT=f'{data / "coco"}/', ADE20K_ROOT=str(data / 'ADEChallengeData2016'))
    steps = [('toy data', data, ['dev/make_toy_data.py', data])]
    for name, (config, metrics) in MODELS.items():
        folder, checkpoint = out / name, out / name / 'final.pth'
        steps += [
            (f'{name}: training', checkpoint, ['train.py', config, '--work-dir', folder, '--resume']),
            (f'{name}: test', folder / 'test', ['test.py', config, checkpoint, '--show-dir', folder / 'pictures']),
            (
                f'{name}: multi-scale test',
                folder / 'multi-scale test',
                ['test.py', config, checkpoint, '--tta']
                + (['--cfg-options', 'test_evaluator.metric=bbox'] if name == 'mask-rcnn' else []),
            ),
        ]
    for number, (title, result, command) in enumerate(steps, 1):
        print(f'[{number}/{len(steps) + 1}] {title}', flush=True)
        if result.exists():
            print('      done before', flush=True)
            continue
        if command[0] == 'test.py':
            command += ['--work-dir', result.with_name(f'{result.name}.unfinished')]
        run(command, out / f'{title.replace(": ", " ")}.log')
        if command[0] == 'test.py':
            result.with_name(f'{result.name}.unfinished').rename(result)
        elif command[0] == 'train.py':
            latest = Path((result.parent / 'last_checkpoint').read_text().strip())
            result.symlink_to(latest.name)
    print(f'[{len(steps) + 1}/{len(steps) + 1}] table, curves and pictures', flush=True)
    table = write_table(out)
    write_curves(out)
    for name in MODELS:
        write_sheet(out, name)
    print(
        f'\n{table}\nDone in {(time.time() - started) / 60:.1f} minutes. See {out}:\n'
        '  metrics.md    this table\n'
        '  curves.png    losses while training, metrics on held-out pictures\n'
        '  mask-rcnn.png, upernet.png    ground truth (left) and prediction (right); all of them in */pictures\n'
        '  */final.pth   the trained models; *.log what was printed'
    )


def run(command: list, log: Path) -> None:
    """Run a tool, its output going to a log; every half minute and at every evaluation, say how far it is."""
    said, latest = time.time(), None
    with log.open('a') as file:
        process = subprocess.Popen(
            [sys.executable, ROOT / 'tools' / command[0], *command[1:]],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            for line in process.stdout:
                file.write(line)
                # "... - INFO - Epoch(train) [1][10/100] base_lr: ... loss: 1.2 ..."
                found = re.search(r'INFO - (?:Epoch|Iter)\((\w+)\) +(.*)', line)
                if not found:
                    continue
                latest = re.sub(r' +', ' ', found[0][7:].split('base_lr')[0])
                numbers = ', '.join(re.findall(r'\b(?:loss|coco/bbox_mAP_50|coco/segm_mAP_50|mIoU): [\d.]+', line))
                evaluated = found[1] != 'train' and numbers
                if evaluated or time.time() - said > 30:
                    print(f'      {latest.split("coco")[0].split("aAcc")[0].strip()} {numbers}', flush=True)
                    said = time.time()
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            sys.exit('\nInterrupted: make demo goes on from the last checkpoint.')
    if code:
        tail = '\n'.join(log.read_text().splitlines()[-15:])
        sys.exit(f'{tail}\n\nThis step failed; its log is {log}.')


def write_table(out: Path) -> str:
    """metrics.md: one row per metric, single and multi-scale."""
    rows = ['| model | metric | one scale | multi-scale |', '|---|---|---|---|']
    for name, (_, metrics) in MODELS.items():
        columns = [
            json.loads(max((out / name / kind).glob('*/*.json')).read_text()) for kind in ('test', 'multi-scale test')
        ]
        for key, (title, factor) in metrics.items():
            values = [f'{column[key] * factor:.3f}' if key in column else '-' for column in columns]
            rows.append(f'| {name} | {title} | {values[0]} | {values[1]} |')
    table = '\n'.join(rows) + '\n'
    (out / 'metrics.md').write_text(table)
    return table


def write_curves(out: Path) -> None:
    """curves.png from MMEngine's scalars.json, resumed runs joined."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(MODELS), 2, figsize=(11, 4 * len(MODELS)), layout='constrained')
    for (name, (_, metrics)), (left, right) in zip(MODELS.items(), axes):
        curves: dict[str, dict[int, float]] = defaultdict(dict)
        for file in sorted((out / name).glob('*/vis_data/scalars.json')):
            for line in file.read_text().splitlines():
                scalars = json.loads(line)
                for key, value in scalars.items():
                    curves[key][scalars['step']] = value
        for key in sorted(key for key in curves if 'loss' in key):
            left.plot(*zip(*sorted(curves[key].items())), label=key, lw=2 if key == 'loss' else 1)
        for key, (title, factor) in metrics.items():
            steps, values = zip(*sorted(curves[key].items()))
            right.plot(steps, [value * factor for value in values], 'o-', label=title)
        left.set(title=f'{name}: training losses', xlabel='step', yscale='log')
        right.set(title=f'{name}: held-out pictures', xlabel='epoch' if name == 'mask-rcnn' else 'step', ylim=(0, 1))
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
    figure.savefig(out / 'curves.png', dpi=110)


def write_sheet(out: Path, name: str, count: int = 12, columns: int = 3, width: int = 640) -> None:
    """One picture of the first predictions."""
    files = sorted((out / name / 'pictures').rglob('*.[jp][pn]g'))[:count]
    tiles = [cv2.imread(str(file)) for file in files]
    tiles = [
        cv2.resize(tile, (width, tile.shape[0] * width // tile.shape[1]), interpolation=cv2.INTER_AREA)
        for tile in tiles
    ]
    height = max(tile.shape[0] for tile in tiles)
    tiles = [
        cv2.copyMakeBorder(tile, 4, height - tile.shape[0] + 4, 4, 4, cv2.BORDER_CONSTANT, value=(255,) * 3)
        for tile in tiles
    ]
    cv2.imwrite(
        str(out / f'{name}.png'), np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)])
    )


if __name__ == '__main__':
    main()
