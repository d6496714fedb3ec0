"""Train, test and look at a small ELSA-Swin Mask R-CNN and UperNet on toy data.

    make demo

Everything is written to --work-dir (default: work_dirs/demo). A second call continues where the first one stopped.
Remove the folder to start again.
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


#: options of --quick
QUICK_TRAINING = {
    'mask-rcnn': ['train_cfg.max_epochs=1'],
    'upernet': ['train_cfg.max_iters=2', 'train_cfg.val_interval=2'],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work-dir', type=Path, default=ROOT / 'work_dirs' / 'demo')
    parser.add_argument(
        '--quick', action='store_true', help='8 training images and 2 training steps, to see that all parts run'
    )
    args = parser.parse_args()
    out = args.work_dir.resolve()
    started = time.time()
    out.mkdir(parents=True, exist_ok=True)
    data = out / 'data'
    os.environ.update(COCO_ROOT=f'{data / "coco"}/', ADE20K_ROOT=str(data / 'ADEChallengeData2016'))
    quick_data = ['--train', '8', '--val', '4'] if args.quick else []
    steps = [('toy data', data, ['dev/make_toy_data.py', data, *quick_data])]
    for name, (config, _) in MODELS.items():
        folder, checkpoint = out / name, out / name / 'final.pth'
        quick_training = ['--cfg-options', *QUICK_TRAINING[name]] if args.quick else []
        steps += [
            (f'{name}: training', checkpoint, ['train.py', config, '--work-dir', folder, '--resume', *quick_training]),
            (f'{name}: test', folder / 'test', ['test.py', config, checkpoint, '--show-dir', folder / 'images']),
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
            print('      already done', flush=True)
            continue
        if command[0] == 'test.py':
            command += ['--work-dir', result.with_name(f'{result.name}.unfinished')]
        run(command, out / f'{title.replace(": ", " ")}.log')
        if command[0] == 'test.py':
            result.with_name(f'{result.name}.unfinished').rename(result)
        elif command[0] == 'train.py':
            latest = Path((result.parent / 'last_checkpoint').read_text().strip())
            result.symlink_to(latest.name)
    print(f'[{len(steps) + 1}/{len(steps) + 1}] table, curves and images', flush=True)
    table = write_table(out)
    write_curves(out)
    for name in MODELS:
        write_sheet(drawn_images(out, name)[:12], out / f'{name}.png', columns=3, width=640)
    rows = zip(*(drawn_images(out, name)[:3] for name in MODELS))
    write_sheet([file for row in rows for file in row], out / 'readme.jpg', columns=len(MODELS), width=492)
    print(
        f'\n{table}\nDone in {(time.time() - started) / 60:.1f} minutes. See {out}:\n'
        '  metrics.md    this table\n'
        '  curves.png    training losses, and metrics on the validation images\n'
        '  mask-rcnn.png, upernet.png    ground truth (left) and prediction (right); all images are in */images\n'
        '  readme.jpg    some of both: detector in the left column, segmentor in the right one\n'
        '  */final.pth   the trained models\n'
        '  *.log         the output of each step'
    )


def run(command: list, log: Path) -> None:
    """Run a tool and write its output to a log. Print the progress every half minute and at every evaluation."""
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
            sys.exit('\nInterrupted. Call make demo again to continue from the last checkpoint.')
    if code:
        tail = '\n'.join(log.read_text().splitlines()[-15:])
        sys.exit(f'{tail}\n\nThis step failed; its log is {log}.')


def write_table(out: Path) -> str:
    """Write metrics.md: a row per metric, with one scale and with several."""
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
    """Write curves.png from the scalars.json files of MMEngine. Resumed runs are joined."""
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
            if curves[key]:  # a detector that finds nothing has no metrics
                steps, values = zip(*sorted(curves[key].items()))
                right.plot(steps, [value * factor for value in values], 'o-', label=title)
        left.set(title=f'{name}: training losses', xlabel='step', yscale='log')
        right.set(title=f'{name}: validation images', xlabel='epoch' if name == 'mask-rcnn' else 'step', ylim=(0, 1))
        for axis in (left, right):
            axis.grid(alpha=0.3)
            if axis.lines:
                axis.legend(fontsize=8)
    figure.savefig(out / 'curves.png', dpi=110)


def drawn_images(out: Path, name: str) -> list[Path]:
    """The images that tools/test.py drew, ground truth and prediction side by side, in the order of the data."""
    return sorted((out / name / 'images').rglob('*.[jp][pn]g'), key=lambda file: file.name)


def write_sheet(files: list[Path], target: Path, columns: int, width: int) -> None:
    """Write images to one image, row by row, each ``width`` pixels wide with a white border of 4 pixels."""
    rows = []
    for start in range(0, len(files), columns):
        tiles = [cv2.imread(str(file)) for file in files[start : start + columns]]
        tiles = [
            cv2.resize(tile, (width, tile.shape[0] * width // tile.shape[1]), interpolation=cv2.INTER_AREA)
            for tile in tiles
        ]
        row = np.full((max(tile.shape[0] for tile in tiles) + 8, columns * (width + 8), 3), 255, np.uint8)
        for i, tile in enumerate(tiles):
            row[4 : 4 + tile.shape[0], i * (width + 8) + 4 :][:, :width] = tile
        rows.append(row)
    cv2.imwrite(str(target), np.vstack(rows), (cv2.IMWRITE_JPEG_QUALITY, 75))


if __name__ == '__main__':
    main()
