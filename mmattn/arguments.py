"""Checks of arguments that layers and backbones share."""

import math
from collections.abc import Iterable
from numbers import Integral, Real


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Check a number that must be whole.

    Raises:
        ValueError: if the value is no whole number or too small.
    """
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f'{name} must be a whole number of at least {least}, not {value!r}')


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check an argument that is one of a few words.

    Raises:
        ValueError: if it is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f'{name} must be one of {", ".join(choices)}, not {value!r}')


def check_rates(**rates: object) -> None:
    """Check rates of dropout, by name.

    Raises:
        ValueError: if a rate is not in [0, 1).
    """
    for name, rate in rates.items():
        if not isinstance(rate, Real) or not 0 <= rate < 1:
            raise ValueError(f'{name} must be in [0, 1), not {rate!r}')


def hidden_channels(dim: int, mlp_ratio: object) -> int:
    """The hidden channels of an MLP of ``dim`` channels.

    Raises:
        ValueError: if there is none.
    """
    if not isinstance(mlp_ratio, Real) or not 1 <= dim * mlp_ratio < math.inf:
        raise ValueError(f'mlp_ratio must make at least 1 of {dim} channels, not {mlp_ratio!r}')
    return int(dim * mlp_ratio)


def stage_numbers(name: str, given: object, num_stages: int) -> tuple[int, ...]:
    """The numbers of stages, counted from 0.

    Raises:
        ValueError: if they are no such numbers.
    """
    numbers = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(i, Integral) and 0 <= i < num_stages for i in numbers):
        raise ValueError(f'{name} must be stage numbers from 0 to {num_stages - 1}, not {given!r}')
    return numbers
