"""Weights in several files, as large models on the Hugging Face Hub have them: a file *.index.json names the others."""

import json
import re
from pathlib import Path

from ..errors import CheckpointError, describe


def is_index(file: str | Path) -> bool:
    """Whether a file is an index, by its name."""
    return str(file).endswith('.index.json')


def files_of_index(index: Path, shown: str) -> dict[str, set[str]]:
    """The files that an index names, with the names of their tensors.

    Args:
        index: the file.
        shown: how error messages name it.

    Raises:
        CheckpointError: if it cannot be read, or names something else than files of weights beside it.
    """
    try:
        places = list(json.loads(index.read_text(encoding='utf-8'))['weight_map'].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f'{shown} cannot be read as an index of weights: {describe(error)[:300]}') from error
    files: dict[str, set[str]] = {}
    for name, file in places:
        # A path could lead to any file of the machine.
        if not isinstance(file, str) or not re.fullmatch(r'[\w.-]+\.(safetensors|bin|pth|pt)', file):
            raise CheckpointError(f'{shown} has {str(file)[:300]!r} for {name[:300]}: only files beside it are read')
        files.setdefault(file, set()).add(name)
    if not files:
        raise CheckpointError(f'{shown} names no tensors')
    return files
