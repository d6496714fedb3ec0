"""Files that tools write: whole or not at all, and tried before the work that gives their contents."""

import locale
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from secrets import token_hex

import torch

from .errors import InputError, describe


def check_output(*files: str | Path) -> None:
    """Check that files can be written, before the work that takes long. Earlier files of these names are no error.

    A file as long in name as the longest of them is written to the nearest folder that there is, and removed.

    Raises:
        InputError: if the system refuses it, or if there is a folder in the place of a file.
    """
    path = max(map(Path, files), key=lambda file: len(os.fsencode(file.name)))
    folder = next(folder for folder in path.parents if os.path.lexists(folder))
    length = max(len(os.fsencode(part)) for part in path.relative_to(folder).parts)
    trial = folder / token_hex(max(length, 16))[: max(length, 16)]  # No other file has this name.
    try:
        with _refused(path, trial):
            trial.write_bytes(bytes(4096))  # A full disk may have room for the name alone.
    finally:
        _remove(trial)
    for file in filter(os.path.isdir, files):
        raise InputError(f'{file} cannot be written, it is a folder: name another place, or remove it')


def check_name(path: str | Path) -> None:
    """Raise an InputError if the name of a file or folder has characters that a text in this locale cannot have."""
    try:
        str(path).encode(locale.getpreferredencoding(False))
    except UnicodeEncodeError as error:
        raise InputError(
            f'{path} has characters that Python cannot write in this locale ({error.encoding}): set PYTHONUTF8=1, or '
            'name another place'
        ) from error


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A file to write to, with the suffix of ``path``. It gets that name at the end; after an error it is removed.
    An earlier file of this name is replaced, and its mode stays.

    Raises:
        InputError: if the system refuses to write. An earlier file of this name stays.
    """
    path = Path(path)
    part = path.with_name(f'{token_hex(8)}.part{path.suffix}')  # No other process has this name.
    try:
        with _refused(path, part):
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
            if mode is not None:
                part.touch(0o600)  # Who may not read the earlier file reads nothing of the new one.
            yield part
            if mode is not None:
                part.chmod(mode)
            os.replace(part, path)
    finally:
        _remove(part)


def save_tensors(contents: object, path: str | Path) -> None:
    """Write what ``torch.load`` reads, see :func:`whole_file`."""
    torch.save(contents, buffer := BytesIO())  # torch has errors of its own for full disks
    with whole_file(path) as part:
        part.write_bytes(buffer.getbuffer())


@contextmanager
def _refused(path: Path, part: Path) -> Iterator[None]:
    """Turn an error of the system while ``part`` of a file is written into a sentence."""
    try:
        yield
    except OSError as error:
        why = describe(error).replace(part.name, path.name)
        raise InputError(f'{path} cannot be written ({why}): name another place, or make room there') from error


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
