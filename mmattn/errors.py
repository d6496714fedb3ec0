"""The errors for a user's mistakes, and functions that write errors and warnings in one line."""

import difflib
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .privacy import without_secrets


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is one sentence saying what, and what to do.

    It has no secrets, such as the query of a signed address, see :func:`mmattn.privacy.without_secrets`.
    """

    def __init__(self, *parts: object) -> None:
        super().__init__(*(without_secrets(part) if isinstance(part, str) else part for part in parts))


class CheckpointError(InputError, RuntimeError):
    """A checkpoint cannot be read, or does not fit the model."""


# mmguard has this file too. Both raise the same errors: those of the package that was imported first.
_first = sys.modules.setdefault('_input_errors', sys.modules[__name__])
InputError, CheckpointError = _first.InputError, _first.CheckpointError  # noqa: F811


def near_misses(name: str, known: Iterable[str]) -> str:
    """The known names that look like ``name``, in any case, or have it as a part, as the end of a sentence; '' if none
    does."""
    lower = {one.lower(): one for one in sorted(known)}
    parts = [one for one in lower if len(name) > 2 and name.lower() in one]
    near = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=3) or parts[:3]]
    return f': did you mean {" or ".join(near)}?' if near else ''


def describe(error: Exception) -> str:
    """An error in one line, without secrets: the sentence of an :class:`InputError`, type and text of any other."""
    name, text = type(error).__name__, ' '.join(without_secrets(error).split())
    if isinstance(error, InputError):
        # DataLoader raises a worker's error again, with the worker's traceback as its text. The sentence ends it.
        return text.split(f'{name}: ')[-1]
    return f'{name}: {text}' if text else name


@contextmanager
def refusing(sentence: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Turn errors of some kinds in a block into an :class:`InputError` of a sentence and the error."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f'{sentence}: {describe(error)}') from error


def warn(sentence: str) -> None:
    """Write a warning to MMEngine's current log, without secrets."""
    from mmengine.logging import print_log  # imported here, so that packages.py can say that MMEngine is missing

    print_log(without_secrets(sentence), logger='current', level=logging.WARNING)
