"""Configs in YAML: no code in them is run, and a short file does not fill the memory."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from math import inf

import yaml
from mmengine.fileio.handlers import YamlHandler, file_handlers

from ..errors import InputError

#: the largest number of values in a file, where an alias counts as often as it is used
MOST_VALUES = 1_000_000
#: tags that run code or import modules
CODE = tuple(f'tag:yaml.org,2002:python/{kind}' for kind in ('object', 'name', 'module'))


class CheckedLoader(getattr(yaml, 'CLoader', yaml.Loader)):
    """MMEngine's loader of YAML, with two checks. Without them, it runs code in a file, and copies what an alias stands
    for at each use.

    Raises:
        InputError: if a file has code, or more than ``MOST_VALUES``.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        number = _number_of_values(node, {})
        if number > MOST_VALUES:
            raise InputError(f'its aliases make {number} values of it, or contain themselves: write out what is needed')
        return node


class CheckedYaml(YamlHandler):
    """MMEngine's reader of YAML, with :class:`CheckedLoader`."""

    def load_from_fileobj(self, file: io.IOBase, **kwargs) -> object:
        text, depth = file.read(), 0
        # libyaml's composer is recursive and has no limit: deep nesting would crash the process.
        for event in yaml.parse(text, Loader=CheckedLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > sys.getrecursionlimit():
                raise RecursionError(f'more than {depth - 1} levels of lists and mappings')
        return super().load_from_fileobj(io.StringIO(text), Loader=CheckedLoader, **kwargs)


def _number_of_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    if id(node) in known:
        return known[id(node)]
    if node is not None and node.tag.startswith(CODE):
        raise InputError(f'it has code, {node.tag.rpartition("/")[2]}: write such a config in Python')
    known[id(node)] = inf  # where it contains itself
    parts = getattr(node, 'value', ())
    parts = (
        chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts if isinstance(parts, list) else ()
    )
    known[id(node)] = 1 + sum(_number_of_values(part, known) for part in parts)
    return known[id(node)]


@contextmanager
def checked_yaml() -> Iterator[None]:
    """MMEngine reads YAML with :class:`CheckedYaml` in this block, also the bases of a config."""
    before = dict(file_handlers)
    file_handlers.update(dict.fromkeys(('yaml', 'yml'), CheckedYaml()))
    try:
        yield
    finally:
        file_handlers.update(before)
