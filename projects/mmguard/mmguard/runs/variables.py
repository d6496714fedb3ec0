"""Environment variables that configs name, as in ``data_root = '{{$COCO_ROOT:data/coco}}'``."""

import ast
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import Config

from ..errors import InputError

#: as in MMEngine's Config: the name of the variable, and the text without it
VARIABLE = re.compile(r'\{\{[\'"]?\s*\$(\w+)\s*:\s*(\S*?)\s*[\'"]?\}\}')
#: what would end the text of a config, or change it; the last are bytes that are not UTF-8
ODD = re.compile(r'[\'"\\\n\r]|\{\{|[\udc80-\udcff]')


def check_variables(path: str | Path) -> None:
    """Check the environment variables that a config and its bases name. Nothing of them is run.

    MMEngine puts values into the text of a config, which is then run as Python. So a quote or a backslash would break
    or change it. Without them, as in ``size = {{'$SIZE:8'}}``, a value must be a number or another literal of Python.

    Raises:
        InputError: naming the variable.
    """
    files = [Path(path)]
    for file in files:  # The list grows, and has each base once.
        _check_file(file)
        files += [base for base in _bases(file) if base not in files]


def _check_file(path: Path) -> None:
    text = path.read_text('utf-8')
    named = dict.fromkeys(name for name, _ in VARIABLE.findall(text) if name in os.environ)
    bare = _names(VARIABLE.sub(r'__\1__', text)) if named and path.suffix == '.py' else ()
    for name in named:
        value = os.environ[name]
        if not value:
            raise InputError(f'{name} in the environment is empty, and {path} reads it: set it, or unset {name}')
        if f'__{name}__' in bare and not _is_literal(value) or f'__{name}__' not in bare and ODD.search(value):
            raise InputError(
                f'{name} in the environment is {value!r}, and {path} takes it as a part of its text: set it to a value '
                'without quotes, backslashes, line breaks, {{ and bytes that Python cannot read here, and to a number '
                'where the config has no quotes'
            )


def _bases(path: Path) -> Iterator[Path]:
    """The files that a config inherits from, as far as they are there; MMEngine says what is missing."""
    with TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        Config._substitute_predefined_vars(str(path), str(copy))  # no public method finds the bases of a config
        text = VARIABLE.sub(lambda found: os.environ.get(found[1], found[2]), copy.read_text('utf-8'))
        copy.write_text(text, 'utf-8')
        bases = Config._get_base_files(str(copy))
    for base in bases:
        package, _, name = base.rpartition('::')
        spec = find_spec(package) if package else None
        folders = [Path(folder, '.mim', 'configs') for folder in spec.submodule_search_locations] if spec else []
        for folder in folders if package else [path.parent]:
            file = Path(os.path.normpath(folder / name))
            if file.is_file():
                yield file


def _names(code: str) -> set[str]:
    """The names in Python code that are not in texts."""
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _is_literal(value: str) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
