"""Names of metrics that hooks and schedulers follow, compared with those that the metrics of the validation give."""

import inspect
from collections.abc import Iterable, Iterator

from mmengine import registry as registries
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, EarlyStoppingHook

from ..errors import InputError, near_misses
from .config_types import definer, find_type, listed

#: what MMSegmentation's IoUMetric gives for each of its ``iou_metrics``, beside aAcc
IOU_NAMES = {'mIoU': ('mIoU', 'mAcc'), 'mDice': ('mDice', 'mAcc'), 'mFscore': ('mFscore', 'mPrecision', 'mRecall')}
#: ``metric_items`` of MMDetection's CocoMetric: it gives the first six for boxes and masks, the others for proposals
COCO_ITEMS = (
    *('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l'),
    *('AR@100', 'AR@300', 'AR@1000', 'AR_s@1000', 'AR_m@1000', 'AR_l@1000'),
)
#: parts of a config, each with its place in it
Places = list[tuple[str, dict]]


def check_monitors(cfg: Config, hooks: Places, schedulers: Places, names: set[str] | None) -> None:
    """Refuse names that no metric of the validation gives, which MMEngine finds after the first validation.

    Args:
        hooks, schedulers: those of the config, each with its place.
        names: what the metrics give; None where that is not known.

    Raises:
        InputError: for the first name, with the names that are given.
    """
    for place, name in _followed(hooks, schedulers) if cfg.get('train_cfg') else ():
        if cfg.get('val_evaluator') is None:
            raise InputError(f'{place} is {name!r}, but there is no validation: set val_evaluator, or leave it out')
        # CocoMetric with classwise=True gives the precision of each class.
        if names is None or name in names or name.endswith('_precision'):
            continue
        near = [each for each in sorted(names) if each.lower().endswith(name.lower())]
        hint = f': did you mean {" or ".join(near)}?' if near else near_misses(name, names)
        there = f': there {"are" if names else "is"} {", ".join(sorted(names)) or "none"}'
        raise InputError(f'{place} is {name!r}, but no metric of val_evaluator has this name{hint or there}')
    for place, scheduler in schedulers:
        name = scheduler.get('monitor')
        if names and name in names and 'rule' not in scheduler:
            raise InputError(f"{place} lowers the rate while {name} rises: set rule='greater'")


def _followed(hooks: Places, schedulers: Places) -> Iterator[tuple[str, str]]:
    """The names of metrics that the best checkpoint, early stopping and schedulers follow, with their places."""
    for place, hook in hooks:
        cls = find_type(hook, registries.HOOKS) if isinstance(hook, dict) else None
        for kind, key in ((CheckpointHook, 'save_best'), (EarlyStoppingHook, 'monitor')):
            if inspect.isclass(cls) and issubclass(cls, kind):
                names = listed(hook.get(key), f'{place}.{key}')
                yield from ((where, name) for where, name in names if isinstance(name, str) and name != 'auto')
    for place, scheduler in schedulers:
        if getattr(find_type(scheduler, registries.PARAM_SCHEDULERS), 'need_val_args', False):  # ReduceOnPlateau...
            yield f'{place}.monitor', scheduler.get('monitor', 'loss')


def metric_names(metric: dict, place: str) -> set[str] | None:
    """The names of what a metric of MMDetection, MMSegmentation or MMPretrain gives; None where that is not known.

    All of them are better when they are greater.

    Args:
        metric: the config of the metric.
        place: its place.

    Raises:
        InputError: for a figure that the metric does not know, which it would say after the first validation.
    """
    cls = find_type(metric, registries.METRICS)
    kind = definer(cls, 'compute_metrics')

    def given(key: str, default: object, known: Iterable[str] = ()) -> list:
        value = metric.get(key)
        values = list(listed(default if value is None else value, f'{place}.{key}'))
        for where, each in values if known else ():
            if each not in known:
                raise InputError(f'{where} must be one of {", ".join(known)}, not {each!r}')
        return [each for _, each in values]

    names = None
    if metric.get('format_only'):
        names = []
    elif kind in ('IoUMetric', 'CheckedIoUMetric'):
        names = ['aAcc', *(name for each in given('iou_metrics', 'mIoU', IOU_NAMES) for name in IOU_NAMES[each])]
    elif kind == 'CocoMetric':
        names, numbers = [], given('proposal_nums', [100, 300, 1000])
        for each in given('metric', 'bbox'):
            if each == 'proposal_fast':
                names += [f'AR@{number}' for number in numbers]
            else:
                alone = each == 'proposal'
                items = given('metric_items', COCO_ITEMS[6:] if alone else COCO_ITEMS[:6], COCO_ITEMS)
                names += items if alone else [f'{each}_{item}' for item in items]
    elif kind == 'CocoPanopticMetric':
        names = [f'{name}{part}' for part in ('', '_th', '_st') for name in ('PQ', 'SQ', 'RQ')]
    elif kind == 'VOCMetric' and metric.get('metric', 'mAP') == 'mAP':
        names = ['mAP', *(f'AP{int(threshold * 100):02d}' for threshold in given('iou_thrs', 0.5))]
    elif kind == 'Accuracy' and 'thrs' not in metric:
        names = [f'top{number}' for number in given('topk', 1)]
    elif kind == 'SingleLabelMetric' and not {'average', 'thrs'} & set(metric):
        names = given('items', ['precision', 'recall', 'f1-score'])
    if names is None:
        return None
    prefix = metric.get('prefix') or cls.default_prefix
    return {f'{prefix}/{name}' if prefix else name for name in names}
