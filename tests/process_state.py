"""What of a process a library could change for others, to be compared before and after."""

import inspect
import logging
import os
import signal
import sys
import warnings
from types import ModuleType

import mmengine.registry
import torch
from mmengine.fileio.backends import backends, prefix_to_backends
from mmengine.registry import DefaultScope, Registry
from mmengine.runner import CheckpointLoader

PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'torch', 'torchvision', 'numpy')
TORCH_FLAGS = (
    torch.is_grad_enabled,
    torch.get_default_dtype,
    torch.get_num_threads,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
)
CUDNN_FLAGS = ('enabled', 'benchmark', 'deterministic', 'allow_tf32')


def process_state() -> dict[tuple, object]:
    """Every class and function of the packages, every registered name, and the settings of Python and torch.

    What mmattn registers is left out.
    """
    state = {}
    for module in [module for name, module in sys.modules.items() if name.partition('.')[0] in PACKAGES]:
        state.update(_definitions(module))
    for registry in vars(mmengine.registry).values():
        if isinstance(registry, Registry):
            state.update(_registered(registry))
    for name, entries in dict(
        loaders=CheckpointLoader._schemes, backends=backends, prefixes=prefix_to_backends, environment=os.environ
    ).items():
        state.update({(name, key): value for key, value in entries.items() if not _is_ours(value)})
    scope = DefaultScope.get_current_instance()
    settings = {
        'default scope': scope and scope.scope_name,
        'order of loaders': list(CheckpointLoader._schemes),
        'logging': (logging.raiseExceptions, logging.root.level, list(logging.root.handlers), logging.root.disabled),
        'class of loggers': logging.getLoggerClass(),
        'warnings': [entry for entry in warnings.filters if _package(entry[2]) in (*PACKAGES, 'builtins')],
        'signals': [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        'hooks of Python': (sys.excepthook, sys.displayhook, sys.stdout, sys.stderr),
        'torch': [flag() for flag in TORCH_FLAGS],
        'cuDNN': [getattr(torch.backends.cudnn, name) for name in CUDNN_FLAGS],
        'processes': torch.distributed.is_initialized(),
    }
    return state | {('settings', name): value for name, value in settings.items()}


def changes(before: dict[tuple, object]) -> list[str]:
    """What is different from a former :func:`process_state`, or no longer there, or new in a table that was there."""
    after = process_state()
    tables = ('registry', 'loaders', 'backends', 'prefixes', 'environment')
    keys = [*before, *(key for key in after if key[0] in tables and key not in before)]
    absent = object()
    return [
        f'{key}: {before.get(key)} became {after.get(key)}'
        for key in keys
        if not _equal(before.get(key, absent), after.get(key, absent))
    ]


def _package(cls: type) -> str:
    """The package of a class. Packages such as pkg_resources filter their own warnings when they are imported."""
    return cls.__module__.partition('.')[0]


def _definitions(module: ModuleType) -> dict[tuple, object]:
    found = {}
    for name, value in list(vars(module).items()):
        if callable(value):
            found[module.__name__, name] = value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            found.update({(module.__name__, name, key): method for key, method in vars(value).items()})
    return {key: value for key, value in found.items() if _is_fixed(value)}


def _is_fixed(value: object) -> bool:
    """Whether it is a definition, not a counter or a cache."""
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


def _registered(registry: Registry) -> dict[tuple, object]:
    names = {
        ('registry', registry.scope, registry.name, name): value
        for name, value in registry.module_dict.items()
        if not _is_ours(value)
    }
    for child in registry.children.values():
        names.update(_registered(child))
    return names


def _is_ours(value: object) -> bool:
    return str(getattr(value, '__module__', '')).partition('.')[0] == 'mmattn'


def _equal(a: object, b: object) -> bool:
    return a is b or isinstance(a, (str, int, float, list, tuple)) and a == b
