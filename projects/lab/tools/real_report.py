"""Write what `make real` found so far: a table, the curves of the classifiers, and pictures of predictions.

    python projects/lab/tools/real_report.py work_dirs/real --out work_dirs/real/report

The folder is that of `make real`, with the results of compare.py in classifiers/ and downstream/. The pictures
show four test images of each task, by the model with the first seed that did not diverge.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from mmengine.registry import MODELS, DefaultScope
from torch.utils.benchmark import Timer

from mmattn_lab.results import mean_and_spread, read_result
from mmguard.curves import points, read_curves
from mmguard.errors import InputError
from mmguard.outputs import check_output, whole_file
from mmguard.prediction.hook import DrawingHook
from mmguard.runs.configs import OptionsAction, load_config
from mmguard.runs.running import run_tool, test
from mmguard.text import in_figure

CONFIGS = Path(__file__).resolve().parents[1] / 'configs' / 'real'
#: task -> title, key and factor of its score, and the test images that are drawn
TASKS = {
    'camvid': ('CamVid, mIoU', 'mIoU', 1, (20, 80, 140, 200)),
    'bccd': ('BCCD, box AP50', 'pascal_voc/mAP', 100, (5, 25, 45, 65)),
}
SUFFIX = '-pretrained'  #: of a row that starts from the weights of its classifier


class Run(NamedTuple):
    """A finished training: its folder, its scores by name, the seconds of its steps, and its rate."""

    folder: Path
    metrics: dict[str, float]
    seconds: float
    rate: float

    @property
    def diverged(self) -> bool:
        return any(map(math.isnan, self.metrics.values()))

    @property
    def checkpoint(self) -> Path:
        """The last one: a kill while an older one was removed has left that there."""
        return max(self.folder.glob('iter_*.pth'), key=lambda file: int(file.stem.removeprefix('iter_')))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dir', type=Path)
    parser.add_argument('--configs', type=Path, default=CONFIGS, help='folder with the configs of the trainings')
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--cfg-options', nargs='+', action=OptionsAction, help='those of the trainings')
    args = parser.parse_args()
    check_output(args.out / 'table.md', args.out / 'curves.png')
    classifiers = {row: best(runs) for row, runs in finished(args.work_dir / 'classifiers' / 'tiny-imagenet').items()}
    downstream = {task: finished(args.work_dir / 'downstream' / task) for task in TASKS}
    rows = [row for row in load_config(args.configs / 'tiny-imagenet.py').rows if row in classifiers]
    if not rows:
        raise InputError(f'{args.work_dir} has no finished classifier: make real trains them')
    args.out.mkdir(parents=True, exist_ok=True)
    lines = table(rows, classifiers, downstream, measure(args.configs / 'camvid.py', rows, args.cfg_options))
    with whole_file(args.out / 'table.md') as part:
        part.write_text(lines, 'utf-8')
    with whole_file(args.out / 'curves.png') as part:
        draw_curves({row: classifiers[row] for row in rows}, part)
    for task, found in downstream.items():
        for row, runs in found.items():
            if run := next((run for run in runs if not run.diverged), None):
                draw_predictions(args.configs / f'{task}.py', row, run, args.out / task / row, args.cfg_options)
    print(lines)


def finished(folder: Path) -> dict[str, list[Run]]:
    """The finished runs of each row, by seed; without those that chose the rate."""
    runs: dict[str, list[Run]] = {}
    for file in sorted(folder.glob('*/rate*_seed*/result.json')):
        result = read_result(file)
        run = Run(file.parent, result.metrics, result.seconds, result.rate)
        runs.setdefault(file.parents[1].name, []).append(run)
    return runs


def best(runs: list[Run], score: str = 'accuracy/top1') -> Run:
    """The run with the highest score; one that diverged only if there is no other."""
    return max(runs, key=lambda run: (not run.diverged, run.metrics.get(score, 0)))


def table(
    rows: list[str], classifiers: dict[str, Run], downstream: dict[str, dict[str, list[Run]]], milliseconds: dict
) -> str:
    """A line per row: scores as mean ± sample standard deviation over the seeds."""
    head = ['model', 'Tiny ImageNet, top-1', 'top-5', 'minutes']
    head += [f'{title}, {start}' for title, *_ in TASKS.values() for start in ('from scratch', 'pre-trained')]
    lines = [[*head, 'ms'], ['---'] + ['---:'] * len(head)]
    for row in rows:
        metrics, seconds = classifiers[row].metrics, classifiers[row].seconds
        scores = (metrics.get(f'accuracy/top{k}', math.nan) for k in (1, 5))  # One that diverged has no top-5.
        line = [row, *(f'{score:.1f}' for score in scores), f'{seconds / 60:.0f}']
        for task, (_, key, factor, _) in TASKS.items():
            for start in ('', SUFFIX):
                # A detector that finds nothing has no scores.
                runs = downstream[task].get(row + start, ())
                line.append(mean_and_spread([factor * run.metrics.get(key, 0) for run in runs]))
        lines.append([*line, f'{milliseconds[row]:.0f}'])
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def measure(segmentors: Path, rows: list[str], options: dict | None) -> dict[str, float]:
    """Milliseconds of the segmentor of each row for an image of 480 x 360, on one thread: the median of three turns."""
    models = {}
    for row in rows:
        cfg = load_config(segmentors, options, row=row)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            models[row] = MODELS.build(cfg.model).eval()
    times: dict[str, list[float]] = {row: [] for row in rows}
    values = dict(image=torch.zeros(1, 3, 360, 480))
    with torch.inference_mode():
        for _ in range(3):
            for row, model in models.items():
                timer = Timer('model(image, mode="tensor")', globals=dict(values, model=model), num_threads=1)
                times[row].append(1e3 * timer.blocked_autorange(min_run_time=0.5).median)
    return {row: statistics.median(found) for row, found in times.items()}


def draw_curves(classifiers: dict[str, Run], file: Path) -> None:
    """Loss and top-1 accuracy of the classifiers over their steps."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout='constrained')
    for row, run in classifiers.items():
        curves = read_curves(run.folder)
        for axis, key, style in zip(axes, ('loss', 'accuracy/top1'), ('-', 'o-')):
            axis.plot(*points(curves.get(key, {})), style, label=in_figure(row), lw=1)
    for axis, title in zip(axes, ('loss of the training', 'top-1 accuracy of the validation')):
        axis.set(title=title, xlabel='training step')
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def draw_predictions(config: Path, row: str, run: Run, folder: Path, options: dict | None) -> None:
    """Write test images with annotations and predictions of a run."""
    cfg = load_config(config, options, row=row, work_dir=folder / 'log')
    indices = list(TASKS[config.stem][-1])
    cfg.test_dataloader.dataset.indices = indices
    cfg.experiment_name = (
        f'{config.stem}-{row}'  # MMEngine keeps loggers and visualizers by name for the life of the process.
    )
    cfg.visualizer = dict(cfg.get('visualizer') or dict(type='Visualizer'), name=cfg.experiment_name)
    cfg.model.backbone.init_cfg = None
    test(cfg, str(run.checkpoint), hooks=[DrawingHook(folder, len(indices))])


if __name__ == '__main__':
    run_tool(main)
