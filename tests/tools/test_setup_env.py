"""What the set-up tells the user. Every run of the tests shows that the set-up itself works."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.tools.in_process import load_tool


@pytest.fixture
def setup_env(monkeypatch, request):
    monkeypatch.setenv('STACK', getattr(request, 'param', 'onedl'))
    return load_tool('dev/setup_env')


def make(*arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ('STACK', 'MAKEFLAGS', 'MFLAGS')}
    return subprocess.run(['make', *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


each_stack = pytest.mark.parametrize('setup_env', ['onedl', 'openmmlab'], indirect=True)


def test_old_python_is_refused(setup_env, monkeypatch):
    """The message names the option that selects another Python."""
    monkeypatch.setattr(sys, 'version_info', (3, 9, 1))
    with pytest.raises(SystemExit, match='Python 3.10 or newer is needed, .*make PYTHON='):
        setup_env.check_machine()


@pytest.mark.parametrize('setup_env', ['openmmlab'], indirect=True)
def test_new_python_is_refused(setup_env, monkeypatch):
    """The stack openmmlab does not work on Python 3.12, because torch 2.1 has no packages for it."""
    monkeypatch.setattr(sys, 'version_info', (3, 12, 1))
    with pytest.raises(SystemExit, match='torch 2.1 of .* needs Python 3.10 or 3.11, .*STACK=openmmlab PYTHON='):
        setup_env.check_machine()


def test_python_of_an_environment_is_kept(tmp_path):
    """What follows make setup PYTHON=... does not build another environment from python3."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python3').touch()
    (tmp_path / '.venv').mkdir()
    (tmp_path / '.venv' / 'pyvenv.cfg').write_text(f'home = {tmp_path}/bin\n')
    printed = subprocess.run(
        ['make', '-n', '-f', ROOT / 'Makefile', 'setup', 'STACK=onedl'], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert f'{tmp_path}/bin/python3 tools/dev/setup_env.py' in printed


def test_stacks_are_kept_apart():
    """Each stack has its own environment, and its own folder for the results of the demo and of the benchmark."""
    for target in ('demo', 'test', 'lint'):
        printed = [
            make('-n', '--no-print-directory', target, *stack).stdout.splitlines()[-1]
            for stack in ([], ['STACK=openmmlab'])
        ]
        assert printed[0].startswith('.venv/bin/python ') and printed[1].startswith('.venv-openmmlab/bin/python ')
        if target == 'demo':
            assert printed[1].endswith(printed[0].split()[-1] + '-openmmlab')


def test_compilers(setup_env, monkeypatch):
    """One is needed to compile MMCV only. The message says how to install it, and how to do without."""
    monkeypatch.setenv('PATH', '/nowhere')
    monkeypatch.delenv('MMCV_OPS', raising=False)
    setup_env.check_machine()
    monkeypatch.setenv('MMCV_OPS', 'compiled')
    with pytest.raises(SystemExit, match=r'There is no C\+\+ compiler.*apt-get install g\+\+. Or leave out MMCV_OPS'):
        setup_env.check_machine()


def test_operators_change_when_they_are_asked_to(setup_env, monkeypatch, tmp_path):
    """An environment keeps compiled operators, until MMCV_OPS says otherwise."""
    monkeypatch.setattr(setup_env, 'VENV', tmp_path)
    wanted = {}
    for compiled in (False, True):
        if compiled:
            site = tmp_path / 'lib' / 'python3.11' / 'site-packages' / 'mmcv'
            site.mkdir(parents=True)
            (site / '_ext.cpython-311-x86_64-linux-gnu.so').touch()
        for choice in ('', 'compiled', 'torch'):
            monkeypatch.setenv('MMCV_OPS', choice)
            wanted[compiled, choice] = setup_env.wants_compiled()
        assert setup_env.is_compiled() == compiled
    assert {key for key in wanted if wanted[key]} == {(False, 'compiled'), (True, ''), (True, 'compiled')}
    monkeypatch.setenv('MMCV_OPS', 'yes')
    with pytest.raises(SystemExit, match='MMCV_OPS must be compiled or torch, not yes'):
        setup_env.check_machine()


def test_a_missing_file_is_noticed(setup_env, monkeypatch, tmp_path):
    """The quick check of a finished environment finds that an installed file is missing."""
    monkeypatch.setattr(setup_env, 'PYTHON', setup_env.Path(sys.executable))
    assert setup_env.failure(setup_env.COMPLETE) is None
    package = tmp_path / 'broken-1.0.dist-info'
    package.mkdir()
    (package / 'METADATA').write_text('Name: broken\nVersion: 1.0\n')
    (package / 'RECORD').write_text('broken/gone.py,,\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    assert 'broken/gone.py' in setup_env.failure(setup_env.COMPLETE)


def test_failed_step_shows_its_log(setup_env, monkeypatch, tmp_path):
    """The end of the log is in the message, because the reason stands there."""
    monkeypatch.setattr(setup_env, 'LOG', tmp_path / 'log')
    with pytest.raises(SystemExit, match='(?s)out of luck.*This step failed: breaking.*Run the same command again'):
        setup_env.step('breaking', [sys.executable, '-c', 'raise SystemExit("out of luck")'])


@each_stack
def test_pins_are_exact(setup_env):
    """All packages but two build tools have exact versions, so that two machines get the same environment."""
    for line in setup_env.REQUIREMENTS.read_text().splitlines():
        name = line.split('=')[0]
        assert line.startswith('#') or '==' in line or name.split('>')[0] in ('setuptools', 'wheel')


@each_stack
@pytest.mark.parametrize('ops', ['compiled', 'torch'])
def test_mmcv_is_built_once(setup_env, monkeypatch, tmp_path, ops):
    """The wheel is kept in a folder named after torch's version, if it has operators compiled for it, and not built
    again. A failure leaves no files."""
    monkeypatch.setattr(setup_env, 'CACHE', tmp_path)
    monkeypatch.setenv('MMCV_OPS', ops)
    built = []

    def build_one(title, command, **environment):
        folder = command[command.index('-w') + 1]
        folder.mkdir(parents=True)
        if not built:
            built.append('failed')
            raise SystemExit('failed')
        tag = 'cp{0}{1}-cp{0}{1}-linux'.format(*sys.version_info) if ops == 'compiled' else 'py2.py3-none-any'
        name, version = command[-1].split('==')
        built.append(folder / f'{name.replace("-", "_")}-{version}-{tag}.whl')
        built[-1].touch()

    monkeypatch.setattr(setup_env, 'step', build_one)
    with pytest.raises(SystemExit, match='failed'):
        setup_env.mmcv_wheel(['pip'])
    wheel = setup_env.mmcv_wheel(['pip'])
    assert setup_env.mmcv_wheel(['pip']) == wheel and len(built) == 2
    (torch_pin,) = setup_env.requirements('torch')
    assert wheel.parent.name == (torch_pin.replace('==', '-') if ops == 'compiled' else 'pure')
    assert [path.name for path in wheel.parent.iterdir()] == [built[-1].name]
