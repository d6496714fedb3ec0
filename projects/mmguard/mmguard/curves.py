"""Losses and scores of trainings, over their steps."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import InputError, refusing

#: training step -> value
Curve = dict[int, float]
#: Matplotlib cannot draw larger numbers
LARGEST = 1e300


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_curves(folder: Path) -> dict[str, Curve]:
    """The curve of each number that MMEngine's LocalVisBackend wrote below a work folder; resumed trainings are joined.

    Scores that are counted in epochs are at the last step of their epoch. In a training by steps, MMEngine's default
    logger writes step 0 for scores. Here they get the last training step before them in the file. Infinity is NaN, and
    so is COCO's score -1 of sizes that no object has.

    Raises:
        InputError: naming the file that cannot be read, or has a step that is no whole number.
    """
    epoch = epoch_length(folder)
    curves: dict[str, Curve] = defaultdict(dict)
    for file in sorted(folder.glob('*/vis_data/scalars.json')):
        with refusing(f'{file} cannot be read: remove it, if it is damaged'):
            lines, last = [], 0  # each with the last step of the training
            for line in file.read_text('utf-8').splitlines():
                if line.endswith('}'):  # Others are being written, or the training was killed.
                    scalars = json.loads(line)
                    if type(scalars['step']) is not int or not 0 <= scalars['step'] < 2**63:
                        raise InputError(f'{file} cannot be read: step {scalars["step"]!r} is no whole number')
                    last = scalars['step'] if 'loss' in scalars else last
                    lines.append((scalars, last))
            # Scores that are counted in epochs fall behind the steps.
            in_steps = any(last for _, last in lines) and all(scalars['step'] >= last for scalars, last in lines)
            for scalars, last in lines:
                counts_steps = 'loss' in scalars or epoch == 1 or in_steps
                step = max(scalars['step'], last) if counts_steps else scalars['step'] * epoch
                for key, value in scalars.items():
                    if _is_number(value):  # A text has no curve.
                        none = abs(value) >= LARGEST or value == -1 and is_score(key)
                        curves[key][step] = math.nan if none or value != value else value
    return curves


def epoch_length(folder: Path) -> int:
    """The steps of an epoch of the training in a work folder, as its log has them; 1 for a training by steps."""
    logs = ''.join(file.read_text('utf-8', errors='replace') for file in sorted(folder.glob('*/*.log')))
    found = re.search(r'Epoch\(train\) +\[ *\d+\]\[ *\d+/(\d+)\]', logs)
    return int(found[1]) if found else 1


def is_score(key: str) -> bool:
    """Whether a key of MMEngine's logs is a score of the validation, but not that of a single class."""
    names = ('step', 'epoch', 'iter', 'time', 'data_time', 'memory', 'lr', 'base_lr', 'grad_norm')
    return key not in names and not re.search(r'loss|acc_seg|_precision$|(^|\.)acc$|/lr$|/base_lr$', key)


def main_scores(keys: Sequence[str]) -> list[str]:
    """The keys without those of a part, such as coco/bbox_mAP_50 and coco/bbox_mAP_s beside coco/bbox_mAP."""
    return [key for key in keys if not key.startswith(tuple(f'{other}_' for other in keys))]


def largest(curves: dict[str, Curve], most: int) -> list[str]:
    """At most so many keys of curves, those with the largest means, sorted."""
    means = {
        key: np.mean([abs(value) for value in curve.values() if value == value] or [0]) for key, curve in curves.items()
    }
    return sorted(sorted(means, key=means.get)[-most:])


def points(curve: Curve) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Steps and values of a curve; both are empty for a detector that found nothing."""
    return tuple(zip(*sorted(curve.items()))) or ((), ())
