"""What the tools show on the screen."""

import io
import logging
import shutil
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.runner import CheckpointLoader

from mmguard.runs.running import run_tool
from mmguard.runs.screen import keep_all_characters, say_what_is_unusual
from tests import ROOT

BEGINNING = 'Epoch(train)  [1][ 50/2500]  '
NUMBERS = 'base_lr: 1e-4 lr: 1e-4  eta: 1 day, 2:03:04  time: 1.4  data_time: 0.3  loss: 6.1  loss_cls: 6.0'


@pytest.fixture
def screen(capsys, tmp_path, monkeypatch):
    """A function that calls another one as a tool, and returns what it shows and what its log file has."""
    monkeypatch.setattr(MMLogger, '_instance_dict', type(MMLogger._instance_dict)())

    def show(main):
        def tool():
            main(MMLogger.get_instance('tool', log_file=str(tmp_path / 'log')))

        run_tool(tool)
        for handler in MMLogger.get_instance('tool').handlers[1:]:
            handler.close()
        return capsys.readouterr().out, (tmp_path / 'log').read_text()

    return show


@pytest.mark.parametrize(
    'level, message',
    [
        ('INFO', '\n------\nSystem environment:\n    sys.platform: linux\n'),
        ('INFO', '\nhead.fc.bias - torch.Size([3]): \nNormalInit: mean=0, std=0.01, bias=0 \n '),
        ('WARNING', 'Failed to search registry with scope "mmdet" in the "log_processor" registry tree. As a ...'),
    ],
)
def test_known_messages_are_in_the_file_only(screen, level, message):
    """What is known and harmless is not on the screen, and the log file has it."""
    shown, logged = screen(lambda logger: logger.log(getattr(logging, level), message))
    assert not shown and message in logged


@pytest.mark.parametrize(
    'level, message',
    [
        ('INFO', 'resumed from epoch_3.pth'),
        ('INFO', 'the dataset has no image. Config:\n'),  # not at the beginning
        ('WARNING', 'Since `metrics` is an empty dict, the best checkpoint will be skipped'),
    ],
)
def test_other_messages_pass(screen, level, message):
    shown, logged = screen(lambda logger: logger.log(getattr(logging, level), message))
    assert message in shown and message in logged


def test_progress(screen):
    """The screen has step, time left and loss of a training, and all scores of a validation; the file has all."""

    def main(logger):
        logger.info(BEGINNING + NUMBERS)
        logger.info('Iter(val) [4/4]    aAcc: 90.1  mIoU: 45.2  coco/hair drier_precision: 0.1  time: 0.2')

    shown, logged = screen(main)
    train, val = (line.split('INFO')[1].split(' - ')[1] for line in shown.splitlines())
    assert train == 'Epoch(train)  [1][ 50/2500]  eta: 1 day, 2:03:04  loss: 6.1'
    assert val == 'Iter(val) [4/4]  aAcc: 90.1  mIoU: 45.2'
    assert BEGINNING + NUMBERS in logged


def test_what_packages_print(screen):
    """Lines of pycocotools and of package imports are left out with their ends, and nothing else."""

    def main(_):
        for line in ('loading annotations into memory...', 'one', 'Done (t=0.12s)', 'Could not import OneDL', 'two'):
            print(line)

    assert screen(main)[0] == 'one\ntwo\n'


def test_loading_a_checkpoint(screen, tmp_path):
    """MMEngine's line on how a file is read is left out, whichever function reads it: another line names the file."""
    torch.save({}, tmp_path / 'a.pth')
    shown, _ = screen(lambda _: CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth')))
    assert shown == ''


def test_warnings(recwarn):
    """Warnings that are not known pass, in the tool and afterwards all do."""

    def main():
        warnings.warn('faster_coco_eval is not installed, metrics will not be computed.', stacklevel=1)
        warnings.warn('For binary segmentation, we suggest using`out_channels = 1` to ...', stacklevel=1)
        warnings.warn('This DataLoader will create 8 worker processes in total. Our suggested ...', stacklevel=1)
        warnings.warn('something else', stacklevel=1)

    run_tool(main)
    assert [str(one.message) for one in recwarn] == ['something else']
    main()
    assert len(recwarn) == 5


def test_characters_that_the_screen_does_not_have(monkeypatch):
    """A name of a class or a file that the locale cannot show does not end a tool: it is escaped."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, 'latin-1', errors='surrogateescape'))
    run_tool(lambda: print('花, \udcff, a'))
    sys.stdout.flush()
    assert written.getvalue() == b'\\u82b1, \\udcff, a\n'


def test_another_checkout(tmp_path, capsys, monkeypatch):
    """A tool that imports another mmattn than that of its checkout says so in a line, in the first process only. An
    installed copy with the same files is no other one."""
    (tmp_path / 'tools' / 'dev').mkdir(parents=True)
    tool = tmp_path / 'tools' / 'dev' / 'a.py'
    main = compile('def main(): print("ran")', str(tool), 'exec')
    exec(main, names := {})
    run_tool(names['main'])
    assert capsys.readouterr() == ('ran\n', '')  # as of a wheel, where no mmattn is above the tools
    (tmp_path / 'mmattn').mkdir()
    copy = tmp_path / 'mmattn' / '__init__.py'
    shutil.copy(ROOT / 'mmattn' / '__init__.py', copy)
    run_tool(names['main'])
    assert capsys.readouterr().err == ''
    copy.write_text('')
    run_tool(names['main'])
    said = capsys.readouterr().err
    assert said.startswith(f'{tool} runs mmattn of {ROOT / "mmattn"}, which differs from that in {tmp_path}: install')
    monkeypatch.setenv('RANK', '1')
    run_tool(names['main'])
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize('tool', ['tools/train.py', 'projects/lab/tools/compare.py'])
def test_own_checkout(tool, capsys):
    """The tools of this checkout have nothing to say, nor have those of a project."""
    say_what_is_unusual(str(ROOT / tool))
    assert capsys.readouterr().err == ''


def test_characters_in_log_files(tmp_path):
    """A line with a name that the locale does not have is written, not lost."""
    logger = logging.Logger('characters')
    logger.addHandler(logging.FileHandler(tmp_path / 'log', encoding='ascii'))
    keep_all_characters(logger)
    logger.info('花, \udcff')
    logger.handlers[0].close()
    assert (tmp_path / 'log').read_text('utf-8') == '花, \\udcff\n'


def test_unusual_python(monkeypatch, capsys):
    """Without assertions, OpenMMLab's packages check less; without UTF-8, names of files are not found."""
    python = SimpleNamespace(modules={}, flags=sys.flags, stderr=sys.stderr, getfilesystemencoding=lambda: 'utf-8')
    monkeypatch.setattr('mmguard.runs.screen.sys', python)
    say_what_is_unusual(__file__)
    assert capsys.readouterr().err == ''
    python.flags, python.getfilesystemencoding = SimpleNamespace(optimize=1), lambda: 'ascii'
    say_what_is_unusual(__file__)
    first, second = capsys.readouterr().err.splitlines()
    assert 'leave out -O' in first and 'PYTHONUTF8=1' in second
