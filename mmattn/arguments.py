"""Checks of arguments that layers and backbones share.

Each raises a ValueError that names the argument. True and False do not count as numbers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Check a number that must be whole."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return  # in a third of the time
    if not _is(Integral, value) or value < least or (most is not None and value > most):
        size = f'of at least {least}' if most is None else f'from {least} to {most}'
        raise ValueError(f'{name} must be a whole number {size}, not {value!r}')


def check_odd(name: str, value: object, least: int = 1) -> None:
    """Check the side of a square that has a centre."""
    check_whole(name, value, least)
    if value % 2 == 0:
        raise ValueError(f'{name} must be odd, not {value}')


def check_finite(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> None:
    """Check a number, by default of any size and sign."""
    if not _is(Real, value) or not math.isfinite(value) or not least <= value <= most:
        limits = f' from {least} to {most}' if most < math.inf else f' of at least {least}' if least > -math.inf else ''
        raise ValueError(f'{name} must be a finite number{limits}, not {value!r}')


def check_heads(dim: object, num_heads: object, name: str = 'num_heads') -> None:
    """Check the channels of a map, and the number of attention heads, or of other parts, which divides them."""
    check_whole('dim', dim)
    check_whole(name, num_heads)
    if dim % num_heads:
        raise ValueError(f'{name} {num_heads} does not divide the {dim} channels of the map')


def check_flags(**flags: object) -> None:
    """Check switches, by name: True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f'{name} must be True or False, not {flag!r}')


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check an argument that is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f'{name} must be one of {", ".join(choices)}, not {value!r}')


def check_rates(**rates: object) -> None:
    """Check rates of dropout, by name: in [0, 1)."""
    for name, rate in rates.items():
        if not _is(Real, rate) or not 0 <= rate < 1:
            raise ValueError(f'{name} must be in [0, 1), not {rate!r}')


def check_arch(name: str, owner: str, arch: Mapping[str, object], variants: Sequence[Mapping[str, object]]) -> None:
    """Check an architecture that is given as a dict: it has the keys of the known ``variants``, and whole numbers, or
    lists of them, where these have such. ``owner`` is the argument's name in messages about keys."""
    wanted = set(variants[0])
    if set(arch) != wanted:
        problems = [
            f'{kind} {", ".join(sorted(keys))}'
            for kind, keys in (('lacks', wanted - set(arch)), ('has unknown', set(arch) - wanted))
            if keys
        ]
        raise ValueError(f'{owner} {" and ".join(problems)}; its keys are {", ".join(sorted(wanted))}')
    for key, value in arch.items():
        known = [variant[key] for variant in variants]
        if not isinstance(known[0], tuple):
            check_whole(f'{name}: {key}', value, 0 if 0 in known else 1)
        elif not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ValueError(f'{name}: {key} must be a list of whole numbers, one per stage, not {value!r}')
        else:
            for i, number in enumerate(value):
                check_whole(f'{name}: {key}[{i}]', number)


def hidden_channels(dim: int, ratio: object, name: str = 'mlp_ratio') -> int:
    """The hidden channels of an MLP of ``dim`` channels, rounded down; at least 1."""
    if not _is(Real, ratio) or not 1 <= dim * ratio < math.inf:
        raise ValueError(f'{name} must make at least 1 of {dim} channels, not {ratio!r}')
    return int(dim * ratio)


def stage_numbers(name: str, given: object, num_stages: int) -> tuple[int, ...]:
    """The numbers of stages, counted from 0."""
    numbers = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(_is(Integral, i) and 0 <= i < num_stages for i in numbers):
        raise ValueError(f'{name} must be stage numbers from 0 to {num_stages - 1}, not {given!r}')
    return numbers


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
