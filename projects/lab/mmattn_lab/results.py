"""What compare.py keeps of a finished training, and the mean of several seeds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmguard.curves import LARGEST
from mmguard.errors import InputError, refusing


class Result(NamedTuple):
    """A finished training, in result.json."""

    metrics: dict[str, float]  #: of the last evaluation; NaN if the training diverged
    seconds: float  #: of the training steps
    rate: float
    seed: int | None  #: None for a run that chooses the rate
    digest: str  #: of the config


def read_result(file: Path) -> Result:
    """Read result.json.

    Raises:
        InputError: if the file cannot be read, or has no such numbers. Metrics are finite or NaN, the others from 0 to
            2^31.
    """
    with refusing(f'{file} cannot be read'):
        found = json.loads(file.read_bytes())
        seed, digest = found.get('seed'), found.get('digest', '')
        others = {key: found[key] for key in ('seconds', 'rate')}
        for key, value in {**found['metrics'], **others}.items():
            if type(value) not in (int, float) or abs(value) > LARGEST or key in others and not 0 <= value < 2**31:
                raise InputError(f'{file} cannot be read: {key} is {_short(value)}')
        if not (seed is None or type(seed) is int and 0 <= seed < 2**31) or not isinstance(digest, str):
            raise InputError(f'{file} cannot be read: seed is {_short(seed)}, and digest {_short(digest)}')
        metrics = {key: float(value) for key, value in found['metrics'].items()}
    return Result(metrics, float(found['seconds']), float(found['rate']), seed, digest)


def _short(value: object) -> str:
    return (
        f'an integer of {value.bit_length()} bits'
        if isinstance(value, int) and abs(value) > 2**64
        else repr(value)[:40]
    )


def mean_and_spread(scores: Sequence[float]) -> str:
    """Mean and sample standard deviation of the scores of several seeds; one score is alone, and none is "-"."""
    if len(scores) < 2:
        return f'{scores[0]:.1f}' if scores else '-'
    # Python's statistics.stdev fails for a NaN, the score of a training that diverged.
    return f'{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}'
