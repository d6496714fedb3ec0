"""Losses and scores of trainings, over their steps."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import refusing

#: training step -> value
Curve = dict[int, float]


def read_curves(folder: Path) -> dict[str, Curve]:
    """The curve of each number that MMEngine's LocalVisBackend wrote below a work folder; resumed trainings are joined.

    Scores that are counted in epochs are at the last step of their epoch. In a training by steps, MMEngine's default
    logger writes step 0 for scores. Here they get the last training step before them in the file.

    Raises:
        InputError: naming the file that cannot be read.
    """
    epoch = epoch_length(folder)
    curves: dict[str, Curve] = defaultdict(dict)
    for file in sorted(folder.glob('*/vis_data/scalars.json')):
        with refusing(f'{file} cannot be read: remove it, if it is damaged'):
            lines, last = [], 0  # each with the last step of the training
            for line in file.read_text().splitlines():
                if line.endswith('}'):  # Others are being written, or the training was killed.
                    scalars = json.loads(line)
                    last = scalars['step'] if 'loss' in scalars else last
                    lines.append((scalars, last))
            # Scores that are counted in epochs fall behind the steps.
            in_steps = any(last for _, last in lines) and all(scalars['step'] >= last for scalars, last in lines)
            for scalars, last in lines:
                counts_steps = 'loss' in scalars or epoch == 1 or in_steps
                step = max(scalars['step'], last) if counts_steps else scalars['step'] * epoch
                for key, value in scalars.items():
                    curves[key][step] = value
    return curves


def epoch_length(folder: Path) -> int:
    """The steps of an epoch of the training in a work folder, as its log has them; 1 for a training by steps."""
    logs = ''.join(file.read_text(errors='replace') for file in sorted(folder.glob('*/*.log')))
    found = re.search(r'Epoch\(train\) +\[ *\d+\]\[ *\d+/(\d+)\]', logs)
    return int(found[1]) if found else 1


def is_score(key: str) -> bool:
    """Whether a key of MMEngine's logs is a score of the validation, but not that of a single class."""
    names = ('step', 'epoch', 'iter', 'time', 'data_time', 'memory', 'lr', 'base_lr', 'grad_norm')
    return key not in names and not re.search(r'loss|acc_seg|_precision$|(^|\.)acc$|/lr$|/base_lr$', key)


def points(curve: Curve) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Steps and values of a curve; both are empty for a detector that found nothing."""
    return tuple(zip(*sorted(curve.items()))) or ((), ())


def mean_and_spread(scores: Sequence[float]) -> str:
    """Mean and sample standard deviation of the scores of several seeds; one score is alone, and none is "-"."""
    if len(scores) < 2:
        return f'{scores[0]:.1f}' if scores else '-'
    # Python's statistics.stdev fails for a NaN, the score of a training that diverged.
    return f'{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}'
