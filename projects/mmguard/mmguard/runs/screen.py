"""What our tools show on the screen: the progress of a run, without lines and warnings that are known and harmless.

The log file of a run has all that is logged.
"""

import filecmp
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from ..privacy import without_secrets

#: beginnings of log messages and of what packages print
LINES = re.compile(
    '|'.join(
        [
            r'\n-+\nSystem environment:',
            r'Config:\n',
            r'Hooks will be executed in the following order:\n',
            r'paramwise_options -- ',
            r'\n[\w.]+ - torch\.Size\(\[',  # how each parameter was initialised, in a run without a log file
            r'Exp name: ',
            r'Loads checkpoint by \w+ backend from path: ',  # "Load checkpoint from ..." follows
            r'Distributed training is not used, all SyncBatchNorm',
            r'Resumed iteration number is not divisible by',  # AccumulationHook says whether gradients are lost
            r'Using env variable `\w+` with value of ',
            r'Could not import OneDL',
            r'Failed to search registry with scope "\w+" in the "[\w ]+" registry tree',  # it is found in another one
            r'The prefix is not set in metric class \w+',
            r'"FileClient" will be deprecated in future',
            r'"HardDiskBackend" is the alias of "LocalBackend"',
            r'(loading annotations into memory|creating index|Loading and preparing results)\.\.\.$',
            r'(Running per image evaluation|Accumulating evaluation results)\.\.\.$',
            r'index created!$',
            r'D(one|ONE) \(t=[\d.]+s\)\.?$',
            r'Evaluate annotation type \*\w+\*$',
        ]
    )
)
#: beginnings of warnings of Python, as regular expressions
WARNINGS = (
    'faster_coco_eval is not installed',
    'The draw is False, it means that the hook for visualization will not take effect',
    'Default ``avg_non_ignore`` is False',
    'For binary segmentation, we suggest using',  # one sigmoid channel; two classes are as good
    r'`(create_unbacked_symint|isinstance\(treespec, LeafSpec\))` is deprecated',  # torch's own, in exports
    r'``build_\w+`` would be deprecated soon',
    'The shape of value will convert from torch.Size',
    r'This DataLoader will create \d+ worker processes in total',  # more than the machine has cores
    'To copy construct from a tensor, it is recommended to use',  # in MMDetection's test of several views
)
#: before the message of a line of MMEngine's log, whose level may be coloured
PREFIX = re.compile(r'\d\d/\d\d \d\d:\d\d:\d\d - mmengine - (?:\x1b\[\d+m)*[A-Z]+(?:\x1b\[\d+m)* - ')
#: in a line on the progress of a training, validation or test
PROGRESS = re.compile(r'(?:Epoch|Iter)\((?:train|val|test)\) ')


class Screen:
    """A stream of text without ``LINES`` and secrets, in which lines on progress are shortened to step, time left, loss
    and scores."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.left_out = stream, False

    def write(self, text: str) -> int:
        """Write what one call of ``print`` or one message of a logger writes."""
        end_of_line = self.left_out and text == '\n'  # print writes it apart
        prefix = PREFIX.match(text)
        message = text[prefix.end() :] if prefix else text
        self.left_out = bool(LINES.match(message)) and not text.endswith('\n')
        if not end_of_line and not LINES.match(message):
            self.stream.write(_shortened(text) if prefix and PROGRESS.match(message) else without_secrets(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def _shortened(line: str) -> str:
    """A line of MMEngine's log processor, "Iter(train) [50/100]  lr: 1e-4  eta: 0:01:00  loss: 2.1  ...", shortened."""
    start = re.match(r'.*?\((train|val|test)\)(?: *\[[\d/ ]+\])*', line)
    numbers = re.split(' {2,}', line[start.end() :].strip())
    if start[1] == 'train':
        numbers = [number for number in numbers if number.startswith(('eta: ', 'loss: '))]
    else:
        # A table before the line has the precision of each class.
        numbers = [number for number in numbers if not re.match('time: |data_time: |memory: |.+_precision: ', number)]
    return '  '.join([start[0], *numbers]) + '\n'


def escape_unknown_characters() -> None:
    """Make stdout and stderr write ``\\xe9`` or ``\\u4e2d`` where their encoding has no such character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, 'reconfigure'):  # one that a test or a notebook has put there may not have it
            stream.reconfigure(errors='backslashreplace')


def keep_all_characters(logger: logging.Logger) -> None:
    """Make the log files of a logger UTF-8. In another locale, lines with characters that it does not have are lost."""
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None:
            handler.stream.reconfigure(encoding='utf-8', errors='backslashreplace')


def say_what_is_unusual(tool: str) -> None:
    """Print a line, in the first process of a run, if a tool and its packages differ from those of one checkout,
    if Python cannot read names of files as UTF-8, or if it leaves out assertions.

    Args:
        tool: file of the tool.
    """
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) != '0':
        return
    for package, place in dict(mmattn='', mmguard='projects/mmguard').items():
        if package not in sys.modules:
            continue
        imported = Path(sys.modules[package].__file__).resolve().parent
        checkouts = [path / place for path in Path(tool).resolve().parents]
        own = next((path for path in checkouts if (path / package / '__init__.py').is_file()), None)
        if own not in (None, imported.parent) and differ(own / package, imported):
            print(
                f'{tool} runs {package} of {imported}, which differs from that in {own}: install that one, or set '
                f'PYTHONPATH={own}',
                file=sys.stderr,
            )
    if sys.flags.optimize:
        print(
            "python -O leaves out the checks of OpenMMLab's packages: leave out -O and PYTHONOPTIMIZE", file=sys.stderr
        )
    if sys.getfilesystemencoding() != 'utf-8':
        print(
            f'Python reads names of files as {sys.getfilesystemencoding()} here, and may not find others: PYTHONUTF8=1 '
            'reads them as UTF-8',
            file=sys.stderr,
        )


def differ(package: Path, other: Path) -> bool:
    """Whether a module of a package is missing or different in another copy of it."""
    copies = ((file, other / file.relative_to(package)) for file in package.rglob('*.py'))
    return any(not copy.is_file() or not filecmp.cmp(file, copy) for file, copy in copies)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave ``LINES`` and ``WARNINGS`` out, of what is written in the block and by loggers that are made in it."""
    with warnings.catch_warnings(), redirect_stdout(Screen(sys.stdout)):
        for beginning in WARNINGS:
            warnings.filterwarnings('ignore', beginning)
        yield
