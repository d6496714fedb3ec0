"""The sentences of the set-up; that it works is seen by every run of the tests."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.fixture
def setup_env(monkeypatch, request):
    monkeypatch.setenv('STACK', getattr(request, 'param', 'onedl'))
    spec = importlib.util.spec_from_file_location('setup_env', ROOT / 'tools' / 'dev' / 'setup_env.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(*arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ('STACK', 'MAKEFLAGS', 'MFLAGS')}
    return subprocess.run(['make', *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


each_stack = pytest.mark.parametrize('setup_env', ['onedl', 'openmmlab'], indirect=True)


def test_old_python_is_told(setup_env, monkeypatch):
    monkeypatch.setattr(sys, 'version_info', (3, 9, 1))
    with pytest.raises(SystemExit, match='Python 3.10 or newer is needed, .*make PYTHON='):
        setup_env.check_machine()


@pytest.mark.parametrize('setup_env', ['openmmlab'], indirect=True)
def test_new_python_is_told(setup_env, monkeypatch):
    """torch 2.1 has no packages for Python 3.12; the default stack's has."""
    monkeypatch.setattr(sys, 'version_info', (3, 12, 1))
    with pytest.raises(SystemExit, match='torch 2.1, .* needs Python 3.10 or 3.11, .*STACK=openmmlab PYTHON='):
        setup_env.check_machine()


def test_unknown_stack_is_told():
    done = make('test', 'STACK=mmlab')
    assert done.returncode and done.stderr.startswith('There is no stack mmlab: STACK is one of onedl, openmmlab.\n')
    assert not (ROOT / '.venv-mmlab').exists()


def test_stacks_are_kept_apart():
    """Each has its own environment, and the demo and the benchmark their own results, where one cannot be taken for
    the other's."""
    for target in ('demo', 'test', 'test-all', 'bench'):
        printed = [
            make('-n', '--no-print-directory', target, *stack).stdout.splitlines()[-1]
            for stack in ([], ['STACK=openmmlab'])
        ]
        assert printed[0].startswith('.venv/bin/python ') and printed[1].startswith('.venv-openmmlab/bin/python ')
        assert target.startswith('test') or printed[1].endswith(printed[0].split()[-1] + '-openmmlab')


def test_missing_compiler_is_told(setup_env, monkeypatch):
    monkeypatch.setenv('PATH', '/nowhere')
    monkeypatch.delenv('CXX', raising=False)
    with pytest.raises(SystemExit, match=r'No C\+\+ compiler \(c\+\+\) was found.*apt-get install g\+\+'):
        setup_env.check_machine()


def test_missing_headers_are_told(setup_env, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env.sysconfig, 'get_paths', lambda: {'include': str(tmp_path)})
    with pytest.raises(SystemExit, match='Python.h .* is missing'):
        setup_env.check_machine()


def test_missing_python_is_told():
    done = make('setup', 'PYTHON=no-such-python')
    assert done.returncode and 'There is no no-such-python: install Python 3.10 or newer' in done.stderr


def test_a_missing_file_is_noticed(setup_env, monkeypatch, tmp_path):
    """The quick check of a finished environment sees that an installed file is gone, wherever it was."""
    monkeypatch.setattr(setup_env, 'PYTHON', setup_env.Path(sys.executable))
    assert setup_env.failure(setup_env.COMPLETE) is None
    package = tmp_path / 'broken-1.0.dist-info'
    package.mkdir()
    (package / 'METADATA').write_text('Name: broken\nVersion: 1.0\n')
    (package / 'RECORD').write_text('broken/gone.py,,\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    assert 'broken/gone.py' in setup_env.failure(setup_env.COMPLETE)


def test_failed_step_shows_its_log(setup_env, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env, 'LOG', tmp_path / 'log')
    with pytest.raises(SystemExit, match='(?s)out of luck.*This step failed: breaking.*run the same command again'):
        setup_env.step('breaking', [sys.executable, '-c', 'raise SystemExit("out of luck")'])


@each_stack
def test_pins_are_exact(setup_env):
    """Everything but the build tools is pinned, so that two machines get one environment."""
    for line in setup_env.REQUIREMENTS.read_text().splitlines():
        name = line.split('=')[0]
        assert line.startswith('#') or '==' in line or name.split('>')[0] in ('setuptools', 'wheel')


@each_stack
def test_mmcv_is_compiled_once(setup_env, monkeypatch, tmp_path):
    """The wheel goes to a folder named after torch's version; found there, it is not compiled again; a failure leaves
    nothing behind."""
    monkeypatch.setattr(setup_env, 'CACHE', tmp_path)
    compiled = []

    def compile_one(title, command, **environment):
        folder = command[command.index('-w') + 1]
        folder.mkdir(parents=True)
        if not compiled:
            compiled.append('failed')
            raise SystemExit('failed')
        tag = 'cp{}{}'.format(*sys.version_info)
        name, version = command[-1].split('==')
        compiled.append(folder / f'{name.replace("-", "_")}-{version}-{tag}-{tag}-linux.whl')
        compiled[-1].touch()

    monkeypatch.setattr(setup_env, 'step', compile_one)
    with pytest.raises(SystemExit, match='failed'):
        setup_env.mmcv_wheel(['pip'])
    wheel = setup_env.mmcv_wheel(['pip'])
    assert setup_env.mmcv_wheel(['pip']) == wheel and len(compiled) == 2
    (torch_pin,) = setup_env.requirements('torch')
    assert wheel.parent.name == torch_pin.replace('==', '-')
    assert [path.name for path in wheel.parent.iterdir()] == [compiled[-1].name]
