"""Which classes a model confuses: a picture and a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS, DefaultScope

from .checks.config_types import bases
from .checks.config_values import metric_configs
from .errors import InputError
from .outputs import check_output, whole_file
from .runs.configs import add_metric

#: the detections that count have this score or more, and overlap a box by this IoU or more
SCORE, IOU = 0.3, 0.5
#: what a missed box is found as, and what a detection without a box is
BACKGROUND = 'background (no box)'
#: classes in a picture, lines of the table, letters of a name
CLASSES, LINES, LETTERS = 20, 20, 24


def draw_confusion(cfg: Config, file: Path) -> None:
    """Make a test draw its confusion matrix: see :class:`ConfusionPicture`.

    Raises:
        InputError: if no metric can be added to the config's evaluator, if the model predicts several labels of an
            image, or if the file cannot be written.
    """
    check_output(file)
    head = cfg.model.get('head')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        if isinstance(head, dict) and {'MultiLabelClsHead', 'MultiTaskHead'}.intersection(bases(head)):
            raise InputError(f'--confusion needs one label of each image, and a {head.type} predicts several')
    metric = dict(type='ConfusionPicture', file=str(file))
    for _, one in metric_configs(cfg, 'test'):
        if 'ignore_index' in one:
            metric['ignore_index'] = one['ignore_index']
    add_metric(cfg, '--confusion', metric)


@METRICS.register_module()
class ConfusionPicture(BaseMetric):
    """Draws the confusion matrix of a test and logs its most frequent confusions.

    It counts pixels for segmentors, images for classifiers and boxes for detectors: see :func:`matched_labels`.

    Args:
        file: picture to write, .png, .pdf or .svg.
        ignore_index: label of pixels that do not count.

    Raises:
        InputError: if the picture cannot be written, the dataset has no names of classes, or an image has no
            annotations or several labels.
    """

    def __init__(self, file: str, ignore_index: int = 255, **kwargs) -> None:
        super().__init__(**kwargs)
        self.file, self.ignore_index = Path(file), ignore_index

    def process(self, data_batch: object, data_samples: Sequence[dict]) -> None:
        names = self.dataset_meta.get('classes')
        if not names:
            raise InputError('the confusion matrix needs names of classes: set metainfo.classes of the dataset')
        for sample in data_samples:
            truth, found = self._labels(sample, len(names))
            pairs = np.stack([truth, found]).astype(np.int64)
            self.results.append(np.unique(pairs, axis=1, return_counts=True) if pairs.size else None)
            self.boxes = 'pred_instances' in sample

    def _labels(self, sample: Mapping, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """True and found labels of all that counts in an image."""
        if 'pred_instances' in sample and 'bboxes' in sample.get('gt_instances', ()):
            return matched_labels(sample, classes)
        if 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
            truth, found = (sample[key]['data'].flatten().cpu().numpy() for key in ('gt_sem_seg', 'pred_sem_seg'))
            counts = (truth < classes) & (truth != self.ignore_index)
            return truth[counts], found[counts]
        if 'pred_score' in sample and len(sample.get('gt_label', ())) == 1:
            return sample['gt_label'].cpu().numpy(), sample['pred_score'].argmax(0, keepdim=True).cpu().numpy()
        raise InputError(
            'the confusion matrix needs boxes, label maps or one label of each image: has the test pipeline '
            'LoadAnnotations?'
        )

    def compute_metrics(self, results: list) -> dict:
        names = [*map(str, self.dataset_meta['classes']), *([BACKGROUND] if self.boxes else [])]
        matrix = np.zeros((len(names), len(names)), np.int64)
        for (truth, found), counts in filter(None, results):
            matrix[truth, found] += counts
        with whole_file(self.file) as part:
            draw(matrix, names).savefig(part, dpi=110, bbox_inches='tight')
        print_log('\n'.join(['Most frequent confusions:', *table(matrix, names), str(self.file)]), 'current')
        return {}


def matched_labels(sample: Mapping, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The true and the found label of each box of an image and of each detection without a box.

    Each detection, in the order of scores, takes the free box that it overlaps most, of any class. ``classes`` is the
    label of the background. Detections in an ignored region do not count, as in COCO's metric.
    """
    from pycocotools.mask import iou

    def boxes(one: Mapping) -> np.ndarray:
        corners = getattr(one['bboxes'], 'tensor', one['bboxes']).cpu().double().numpy().reshape(-1, 4)
        return np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])

    given, ignored, found = sample['gt_instances'], sample.get('ignored_instances', {}), sample['pred_instances']
    true, scores, labels = (one.cpu().numpy() for one in (given['labels'], found['scores'], found['labels']))
    order = [i for i in np.argsort(-scores, kind='stable') if scores[i] >= SCORE]
    regions = boxes(ignored) if 'bboxes' in ignored else np.empty((0, 4))
    all_boxes = np.vstack([boxes(given), regions])
    overlaps = iou(boxes(found)[order], all_boxes, [0] * len(true) + [1] * len(regions))
    taken, pairs = set(), []
    for label, row in zip(labels[order], np.reshape(overlaps, (len(order), len(all_boxes)))):
        free = [i for i in range(len(true)) if i not in taken and row[i] >= IOU]
        if free:
            box = max(free, key=row.__getitem__)
            taken.add(box)
            pairs.append((true[box], label))
        elif row[len(true) :].max(initial=0) < IOU:
            pairs.append((classes, label))
    pairs += [(label, classes) for i, label in enumerate(true) if i not in taken]
    return tuple(np.array(pairs, np.int64).reshape(-1, 2).T)


def confusions(matrix: np.ndarray) -> list[tuple[int, int]]:
    """The pairs of true and found class that are confused, the most frequent first."""
    errors = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))
    order = np.argsort(-errors, axis=None, kind='stable')[: np.count_nonzero(errors)]
    return [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, errors.shape))]


def table(matrix: np.ndarray, names: Sequence[str]) -> list[str]:
    """A line for each of the most frequent confusions: count, share of the true class, true and found class."""
    totals = matrix.sum(1)
    return [
        f'{matrix[i, j]:>12,} {matrix[i, j] / totals[i]:>6.1%} of {names[i]} found as {names[j]}'
        for i, j in confusions(matrix)[:LINES]
    ]


def fold(matrix: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The matrix and names of the ``CLASSES`` classes with the most frequent confusions, and the others as one class.

    They keep their order. If fewer are confused, the most frequent ones that occur follow. The background is
    always kept. Confusions with it do not decide which classes are kept.
    """
    classes = len(names) - (names[-1] == BACKGROUND)
    if classes <= CLASSES:
        return matrix, list(names)
    ranked = [i for pair in confusions(matrix[:classes, :classes]) for i in pair]
    totals = (matrix.sum(0) + matrix.sum(1))[:classes]
    frequent = np.argsort(-totals, kind='stable')[: np.count_nonzero(totals)].tolist()
    kept = sorted([*dict.fromkeys(ranked + frequent)][:CLASSES])
    to = np.full(len(names), len(kept))
    to[kept] = range(len(kept))
    to[classes:] = len(kept) + 1
    folded = np.zeros((len(kept) + 1 + len(names) - classes,) * 2, matrix.dtype)
    np.add.at(folded, (to[:, None], to[None]), matrix)
    return folded, [*(names[i] for i in kept), f'{classes - len(kept)} others', *names[classes:]]


def draw(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """A row per true class: how many percent of it were found as which class. A class without a sample is empty."""
    matrix, names = fold(matrix, names)
    totals = matrix.sum(1)
    shares = 100 * matrix / totals.clip(min=1)[:, None]
    side = 1 + 0.5 * len(names)
    figure = Figure(figsize=(side, side))
    axis = figure.add_subplot()
    axis.imshow(shares, cmap='Blues', norm=PowerNorm(0.6, 0, 100))
    for i, j in np.argwhere(shares >= 0.05):
        text = f'{shares[i, j]:.{int(shares[i, j] < 9.95)}f}'
        axis.text(j, i, text, ha='center', va='center', fontsize=8, color='w' if shares[i, j] > 45 else 'k')
    short = [name if len(name) <= LETTERS else f'{name[: LETTERS - 1]}…' for name in names]
    axis.set_xticks(range(len(names)), short, rotation=60, ha='right', rotation_mode='anchor', parse_math=False)
    rows = [f'{name} ({total:,})' for name, total in zip(short, totals)]
    axis.set_yticks(range(len(names)), rows, parse_math=False)
    axis.set(xlabel='found as', ylabel='true class (number)', title='Percent of each true class')
    return figure
