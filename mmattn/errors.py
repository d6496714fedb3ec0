"""A user's mistake ends in a sentence, a mistake of ours in a traceback; which is which."""

import difflib
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable

from mmengine.dataset import BaseDataset
from mmengine.logging import MMLogger
from mmengine.registry import Registry


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is one sentence saying what, and what to do."""


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; a mistake in what the user gave ends it in a sentence on stderr, with exit status 1.

    A sentence is due to an :class:`InputError` wherever it is raised, to what the system refuses (a missing file, a
    full disk), to a missing package, and to any error while MMEngine's Runner builds what the config says, up to the
    end of the first training step: the run's log has the traceback of these. Every other error is left as it is.
    """
    try:
        main()
    except Exception as error:
        starting = _is_starting(error)
        if not isinstance(error, (InputError, OSError, ImportError)) and not starting:
            raise
        sentence, log = describe(error), _log(error)
        if starting and log and not isinstance(error, InputError):
            sentence += f' (traceback in {log})'
        sys.exit(sentence)


def describe(error: Exception) -> str:
    """An error in one line, with what was being built and, for a name that is not known, the known ones like it."""
    if isinstance(error, InputError):
        # a worker of a dataloader hands on its traceback, whose end is the message
        return str(error).rstrip().split(f'{type(error).__name__}: ')[-1]
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = ' '.join(str(text).split()) or traceback.extract_tb(error.__traceback__)[-1].line  # a bare assertion
    text = re.sub(r'\.? Please check whether the value of .*|, the current sys.path is.*', '', text)
    return f'{type(error).__name__}: {text}{_context(error, text)}'


def near_misses(name: str, known: Iterable[str]) -> str:
    """Those that look like a name, as the end of a sentence."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    return f': did you mean {" or ".join(near)}?' if near else ''


def known_types(registry: Registry) -> set[str]:
    """What a config can name as a type, from a registry and those it falls back on."""
    return set(registry.module_dict) | (known_types(registry.parent) if registry.parent else set())


def _context(error: Exception, text: str) -> str:
    """What MMEngine's registry was building, as the end of a sentence."""
    calls = [
        frame.f_locals
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name in ('build_from_cfg', 'build_model_from_cfg')
    ]
    calls = [names for names in calls if 'obj_type' in names]
    if not calls:
        return ''
    unknown_type = re.match(r'(\w+) is not in the ', text)
    if unknown_type:
        return near_misses(unknown_type[1], known_types(calls[-1]['registry']))
    cls = calls[-1].get('obj_cls')
    argument = re.search(r"unexpected keyword argument '(\w+)'", text)
    if argument and inspect.isclass(cls):
        arguments = {name for base in cls.__mro__ for name in inspect.signature(base.__init__).parameters}
        return near_misses(argument[1], arguments)
    if inspect.isclass(cls) and issubclass(cls, BaseDataset) and text.startswith('need at least one array'):
        return ': the dataset has no picture, or filter_cfg and what is not annotated left none'
    name = getattr(cls, '__name__', str(cls))
    return '' if name in text else f', building {name}'


def _is_starting(error: Exception) -> bool:
    """Whether MMEngine's Runner raised it and had not finished a training step yet."""
    from mmengine.runner import BaseLoop, FlexibleRunner, Runner

    frames = [(frame.f_code.co_name, frame.f_locals.get('self')) for frame, _ in traceback.walk_tb(error.__traceback__)]
    running = [owner for name, owner in frames if isinstance(owner, BaseLoop) and name == 'run']
    return any(isinstance(owner, (Runner, FlexibleRunner)) for _, owner in frames) and all(
        getattr(loop, '_iter', 1) == 0 for loop in running
    )


def _log(error: Exception) -> str | None:
    """Leave the traceback in the log file of the run, if there is one, whose path is returned."""
    for handler in MMLogger.get_current_instance().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.emit(
                logging.LogRecord(
                    'mmattn',
                    logging.ERROR,
                    __file__,
                    0,
                    'the run ends here',
                    None,
                    (type(error), error, error.__traceback__),
                )
            )
            return handler.baseFilename
    return None
