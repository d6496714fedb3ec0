"""Rows of a config: variants in one file, as the rows of a paper's table. MMATTN_ROW in the environment chooses one.

A config with rows has ``rows``, whose keys are their names, and ``row``, the name of the chosen one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config

from ..errors import refusing
from ..packages import mmseg_bases
from .variables import check_variables

#: the environment variable
ROW = 'MMATTN_ROW'


@contextmanager
def chosen(row: str | None) -> Iterator[None]:
    """Configs that are read in this block have this row; None: the row that each config names as its default."""
    before = os.environ.pop(ROW, None)
    if row is not None:
        os.environ[ROW] = row
    try:
        yield
    finally:
        os.environ.pop(ROW, None)
        if before is not None:
            os.environ[ROW] = before


def read_row(path: str | Path, row: str | None = None, **settings) -> Config:
    """A config with a row, or with its default row, whatever the environment names.

    Args:
        settings: of :meth:`mmengine.config.Config.fromfile`.

    Raises:
        InputError: if it cannot be read.
    """
    # A config is a program, which can raise any error.
    with chosen(row), refusing(f'{path} cannot be read'), mmseg_bases():
        check_variables(path)
        return Config.fromfile(path, **settings)


def row_in_folder(cfg: Config, path: str | Path) -> str:
    """The row of a config as a part of the name of its folder for results; '' if it has none.

    A config that inherits from one with rows is a model of its own: it has a row only if the environment names one.
    """
    named = ROW in os.environ or ROW.encode() in Path(path).read_bytes()
    return cfg.get('row', '') if named and 'rows' in cfg else ''
