"""Environment variables are text in a config, and never code."""

import pytest

from mmguard.errors import InputError
from mmguard.runs.configs import load_config
from mmguard.runs.rows import read_row
from mmguard.runs.variables import check_variables


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config that reads a variable between quotes in its base, and a number without quotes."""
    monkeypatch.setenv('RUN', str(tmp_path / 'run'))
    (tmp_path / 'base.py').write_text("root = '{{$ROOT:data}}'\nsize = {{'$SIZE:8'}}\n")
    (tmp_path / 'config.py').write_text("_base_ = './{{$BASE:base}}.py'\nseen = ['{{$OTHER: a}}']\n")
    return tmp_path / 'config.py'


@pytest.mark.parametrize(
    'name, value',
    [
        ('ROOT', "'data'"),
        ('ROOT', 'data\\'),
        ('ROOT', 'a\nb'),
        ('ROOT', '{{_base_.size}}'),
        ('ROOT', "'; open(__import__('os').environ['RUN'], 'w')  #"),
        ('ROOT', 'd\udcff'),
        ('SIZE', "open(__import__('os').environ['RUN'], 'w')"),
        ('BASE', "base.py' if open(__import__('os').environ['RUN'], 'w') else '"),
        ('ROOT', ''),
    ],
)
def test_refused(config, tmp_path, monkeypatch, name, value):
    """A value that would break, change or add code is refused with its name, before anything of the config runs."""
    monkeypatch.setenv(name, value)
    for read in (check_variables, load_config, read_row):
        with pytest.raises(InputError, match=f'^{name} in the environment is '):
            read(config)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('root', ['data with spaces/ä', '$HOME/#1, (a) [b] {c}'])
def test_read_as_they_are(config, monkeypatch, root):
    """Other values stay as they are, also beside variables with odd values that no config names."""
    monkeypatch.setenv('ROOT', root)
    monkeypatch.setenv('SIZE', "(1, 'x')")
    monkeypatch.setenv('NOT_NAMED', '\'"\\')
    cfg = read_row(config)
    assert cfg.root == root and cfg.size == (1, 'x') and cfg.seen == ['a']
