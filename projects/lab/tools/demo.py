"""Train, test and look at small models on toy data: an ELSA-Swin classifier, a Mask R-CNN that starts from it, the same
Mask R-CNN from scratch, and a UperNet.

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
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from mmguard.curves import points, read_curves

ROOT = Path(__file__).resolve().parents[3]


class Model(NamedTuple):
    """A model of the demo.

    Args:
        config: its config.
        metrics: the metrics to show: key in MMEngine's logs -> (title, factor to a fraction of 1).
        quick: config options of --quick.
        images: whether the tests draw the predictions.
    """

    config: str
    metrics: dict[str, tuple[str, float]]
    quick: list[str]
    images: bool = False


CLASSIFIER = Model(
    'projects/lab/configs/toy/elsa-swin-toy_in1k.py',
    {'accuracy/top1': ('top-1 accuracy', 0.01), 'accuracy/top5': ('top-5 accuracy', 0.01)},
    quick=['train_cfg.max_epochs=1'],
)
MASK_RCNN = Model(
    'projects/lab/configs/toy/mask-rcnn_elsa-swin-toy_fpn.py',
    {
        'coco/bbox_mAP_50': ('box AP50', 1),
        'coco/bbox_mAP': ('box AP', 1),
        'coco/segm_mAP_50': ('mask AP50', 1),
        'coco/segm_mAP': ('mask AP', 1),
    },
    quick=['train_cfg.max_epochs=1'],
)
PRETRAINED = MASK_RCNN._replace(
    config='projects/lab/configs/toy/mask-rcnn_elsa-swin-toy_fpn_pretrained.py', images=True
)
UPERNET = Model(
    'projects/lab/configs/toy/elsa-swin-toy_upernet.py',
    {'mIoU': ('mIoU', 0.01), 'mAcc': ('mean accuracy', 0.01), 'aAcc': ('pixel accuracy', 0.01)},
    quick=['train_cfg.max_iters=2', 'train_cfg.val_interval=2'],
    images=True,
)
MODELS = {
    'classifier': CLASSIFIER,
    'mask-rcnn-scratch': MASK_RCNN,
    'mask-rcnn-pretrained': PRETRAINED,
    'upernet': UPERNET,
}
#: with and without pre-training: folder -> label
DETECTORS = {'mask-rcnn-scratch': 'from scratch', 'mask-rcnn-pretrained': 'pre-trained'}
#: metrics that are printed after each evaluation
KEY_METRICS = ('accuracy/top1', 'coco/bbox_mAP_50', 'coco/segm_mAP_50', 'mIoU')
#: models with images of predictions, in the order of readme.png
DRAWN = [name for name, model in MODELS.items() if model.images]


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
    os.environ.update(
        IMAGENET_ROOT=str(data / 'imagenet'),
        COCO_ROOT=f'{data / "coco"}/',
        ADE20K_ROOT=str(data / 'ADEChallengeData2016'),
        TOY_CLASSIFIER=str(out / 'classifier' / 'final.pth'),
    )
    quick_data = ['--train', '8', '--val', '4'] if args.quick else []
    steps = [('toy data', data, ['projects/lab/tools/make_toy_data.py', data, *quick_data])]
    for name, model in MODELS.items():
        folder, checkpoint = out / name, out / name / 'final.pth'
        train = ['tools/train.py', model.config, '--work-dir', folder, '--resume']
        test = ['tools/test.py', model.config, checkpoint]
        show = ['--show-dir', folder / 'images'] if model.images else []
        steps += [
            (f'{name}: training', checkpoint, [*train, *(['--cfg-options', *model.quick] if args.quick else [])]),
            (f'{name}: test', folder / 'test', [*test, *show]),
        ]
    photo = data / 'ADEChallengeData2016' / 'images' / 'validation' / '000000000001.jpg'
    look = ['--images', photo, '--what', 'attention', '--query', '0.6', '0.4', '--out', out]
    seen = out / f'{photo.stem}_attention.json'
    steps.append(('attention', seen, ['tools/analyze.py', UPERNET.config, out / 'upernet' / 'final.pth', *look]))
    for number, (title, result, command) in enumerate(steps, 1):
        print(f'[{number}/{len(steps) + 1}] {title}', flush=True)
        if result.exists():
            print('      already done', flush=True)
            continue
        if command[0] == 'tools/test.py':
            command += ['--work-dir', result.with_name(f'{result.name}.unfinished')]
        run(command, out / f'{title.replace(": ", " ")}.log')
        if command[0] == 'tools/test.py':
            result.with_name(f'{result.name}.unfinished').rename(result)
        elif command[0] == 'tools/train.py':
            latest = Path(os.fsdecode((result.parent / 'last_checkpoint').read_bytes()).strip())
            result.symlink_to(latest.name)
    print(f'[{len(steps) + 1}/{len(steps) + 1}] table, curves and images', flush=True)
    table = write_table(out)
    write_curves(out)
    for name in DRAWN:
        write_sheet(drawn_images(out, name)[:12], out / f'{name}.png', columns=3, width=640)
    write_readme(out, seen.with_suffix('.png'))
    print(
        f'\n{table}\nDone in {(time.time() - started) / 60:.1f} minutes. See {out}:\n'
        '  metrics.md    these tables\n'
        '  curves.png    training losses and scores on the validation images, over training steps; on top, the\n'
        '                Mask R-CNN from scratch beside the one that starts from the classifier\n'
        '  mask-rcnn-pretrained.png, upernet.png    ground truth (left) and prediction (right); more are in */images\n'
        '  000000000001_attention.png    what a position of this image attends to, in the UperNet (docs/analyze.md)\n'
        '  readme.png    predictions of detector and segmentor, the sheet of attention and the table\n'
        '  */final.pth   the trained models\n'
        '  *.log         the output of each step'
    )


def run(command: list, log: Path) -> None:
    """Run a tool and write its output to a log. Print the progress every half minute and at every evaluation."""
    said = time.time()
    with log.open('a', encoding='utf-8') as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            encoding='utf-8',
            errors='replace',
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            for line in process.stdout:
                file.write(line)
                # "... - INFO - Epoch(train) [1][10/100] base_lr: ... loss: 1.2 ..."
                found = re.search(r'INFO - ((?:Epoch|Iter)\((\w+)\) +(?:\[[ \d/]+\])+)', line)
                if not found:
                    continue
                latest = re.sub(r' +', ' ', found[1])
                numbers = ', '.join(re.findall(rf'\b(?:loss|{"|".join(KEY_METRICS)}): [\d.]+', line))
                evaluated = found[2] != 'train' and numbers
                if evaluated or time.time() - said > 30:
                    print(f'      {latest} {numbers}'.rstrip(), flush=True)
                    said = time.time()
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            sys.exit('\nInterrupted. Call make demo again to continue from the last checkpoint.')
    if code:
        tail = '\n'.join(log.read_text('utf-8').splitlines()[-15:])
        sys.exit(f'{tail}\n\nThis step failed; its log is {log}.')


def write_table(out: Path) -> str:
    """Write metrics.md: a row per metric, and the detectors' box AP50 as they train."""
    rows = ['| model | metric | score |', '|---|---|---|']
    for name, model in MODELS.items():
        scores = json.loads(max((out / name / 'test').glob('*/*.json')).read_text('utf-8'))
        for key, (title, factor) in model.metrics.items():
            rows.append(f'| {name} | {title} | {f"{scores[key] * factor:.3f}" if key in scores else "-"} |')
    rows += ['', f'| box AP50 after steps | {" | ".join(DETECTORS.values())} |', '|---|---|---|']
    curves = [read_curves(out / name)['coco/bbox_mAP_50'] for name in DETECTORS]
    for step in sorted(set().union(*curves)):
        values = [f'{curve[step]:.3f}' if step in curve else '-' for curve in curves]
        rows.append(f'| {step} | {" | ".join(values)} |')
    table = '\n'.join(rows) + '\n'
    (out / 'metrics.md').write_text(table, 'utf-8')
    return table


def write_curves(out: Path) -> None:
    """Write curves.png: the detectors with and without pre-training, then losses and metrics of each model."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(MODELS) + 1, 2, figsize=(11, 4 * len(MODELS) + 4), layout='constrained')
    # Not the losses: a better detector has more positive boxes, so its loss can be higher.
    for axis, key in zip(axes[0], ('coco/bbox_mAP', 'coco/segm_mAP')):
        for name, label in DETECTORS.items():
            axis.plot(*points(read_curves(out / name)[key]), 'o-', label=label)
        axis.set(title=f'Mask R-CNN, {MASK_RCNN.metrics[key][0]} with and without pre-training')
        axis.set_ylim(bottom=0)
    for (name, model), (left, right) in zip(MODELS.items(), axes[1:]):
        curves = read_curves(out / name)
        parts = sorted(key for key in curves if 'loss' in key and key != 'loss')
        for key in ['loss', *(parts if len(parts) > 1 else [])]:
            left.plot(*points(curves[key]), label=key, lw=2 if key == 'loss' else 1)
        for key, (title, factor) in model.metrics.items():
            steps, values = points(curves[key])
            right.plot(steps, [value * factor for value in values], 'o-', label=title)
        left.set(title=f'{name}: training losses', yscale='log', ymargin=0.25)
        left.yaxis.set_major_formatter('{x:g}')
        left.yaxis.set_minor_formatter('')
        right.set(title=f'{name}: validation images', ylim=(0, 1.02))
    for axis in axes.flat:
        axis.set(xlabel='training step')
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, ncols=2, loc='upper right' if axis in axes[1:, 0] else 'lower right')
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


def write_readme(out: Path, attention: Path) -> None:
    """Write readme.png: a prediction of each model in full size, below them the sheet of attention and the table."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    top = padded([cv2.imread(str(drawn_images(out, name)[0])) for name in DRAWN])
    sheet = cv2.imread(str(attention))
    width = int(0.66 * top.shape[1])
    sheet = cv2.resize(sheet, (width, sheet.shape[0] * width // sheet.shape[1]), interpolation=cv2.INTER_AREA)
    rows = [line.strip('| ').split(' | ') for line in (out / 'metrics.md').read_text('utf-8').splitlines()]
    rows = [row for row in rows[: rows.index([''])] if not row[0].startswith('--')]
    figure, axis = plt.subplots(figsize=((top.shape[1] - width) / 100, sheet.shape[0] / 100), layout='constrained')
    axis.axis('off')
    table = axis.table(rows[1:], colLabels=rows[0], cellLoc='left', edges='horizontal', bbox=(0, 0.1, 1, 0.8))
    table.auto_set_font_size(False)
    table.set_fontsize(12)
    table.auto_set_column_width(range(len(rows[0])))
    figure.savefig(out / 'table.png', dpi=100)
    plt.close(figure)
    below = padded([sheet, cv2.imread(str(out / 'table.png'))])
    below = below[:, : top.shape[1]]
    cv2.imwrite(str(out / 'readme.png'), np.vstack([top, below]))


def padded(pictures: list[np.ndarray]) -> np.ndarray:
    """Pictures beside each other, each filled with white to the height of the tallest."""
    height = max(picture.shape[0] for picture in pictures)
    white = dict(borderType=cv2.BORDER_CONSTANT, value=(255, 255, 255))
    return np.hstack([cv2.copyMakeBorder(one, 0, height - one.shape[0], 0, 0, **white) for one in pictures])


if __name__ == '__main__':
    main()
