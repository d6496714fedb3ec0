"""The error that stands for a user's mistake, and how errors are put in one line."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is one sentence saying what, and what to do."""


class CheckpointError(InputError, RuntimeError):
    """A checkpoint cannot be read, or does not fit the model."""


def near_misses(name: str, known: Iterable[str]) -> str:
    """The known names that look like ``name``, as the end of a sentence; '' if there is none."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    return f': did you mean {" or ".join(near)}?' if near else ''


def describe(error: Exception) -> str:
    """An error in one line: the sentence of an :class:`InputError`, type and text of any other."""
    name, text = type(error).__name__, ' '.join(str(error).split())
    if isinstance(error, InputError):
        # DataLoader raises a worker's error again, with the worker's traceback as its text. The sentence ends it.
        return text.split(f'{name}: ')[-1]
    return f'{name}: {text}' if text else name
