"""Rows of a config: variants in one file, as the rows of a paper's table.

A config with rows is itself a model, the default. Its ``rows`` are settings by name. One of them is merged into it as
``--cfg-options`` are: with dotted keys, or with ``_delete_``.
"""

import copy
from pathlib import Path

from mmengine.config import Config

from ..errors import InputError, near_misses, refusing
from ..packages import mmseg_bases
from .variables import check_variables


def read_row(path: str | Path, row: str | None = None, **arguments) -> Config:
    """A config with a row, which then has no ``rows``; with None, as it is in the file.

    Args:
        arguments: of :meth:`mmengine.config.Config.fromfile`.

    Raises:
        InputError: if it cannot be read, or has no such row.
    """
    # A config is a program, which can raise any error.
    with refusing(f'{path} cannot be read'), mmseg_bases():
        check_variables(path)
        cfg = Config.fromfile(path, **arguments)
    merge_row(cfg, row, path)
    return cfg


def merge_row(cfg: Config, row: str | None, path: str | Path) -> None:
    """Merge a row into its config, and remove ``rows``. None changes nothing.

    Raises:
        InputError: if the config has no such row, or if it cannot be merged.
    """
    if row is None:
        return
    rows = cfg.get('rows') or {}
    if row not in rows:
        hint = near_misses(row, rows) or f': it has {", ".join(rows) or "none"}'
        raise InputError(f'{path} has no row {row}{hint}')
    with refusing(f'{path}: the row {row} cannot be merged'):  # MMEngine raises several kinds of errors.
        cfg.merge_from_dict(copy.deepcopy(rows[row]))  # which takes _delete_ out
    cfg.pop('rows')
