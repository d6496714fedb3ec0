"""Build the project's own environment, or repair it. Every target of the Makefile runs this first.

The environment variable STACK names the packages: a file in requirements/. The stack "onedl" is the default and is
installed in .venv; another one is installed in .venv-STACK.

MMCV is installed without its compiled operators, for which projects/mmcv_ops has others. MMCV_OPS=compiled compiles
them, and MMCV_OPS=torch goes back. Without the variable, an environment keeps what it has.

This file uses the standard library only, and no syntax newer than Python 3.5, so that it can tell the user of an old
Python that it is too old.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STACK = os.environ.get('STACK') or 'onedl'
REQUIREMENTS = ROOT / 'requirements' / (STACK + '.txt')
VENV = ROOT / ('.venv' if STACK == 'onedl' else '.venv-' + STACK)
PYTHON = VENV / 'bin' / 'python'
CXX = os.environ.get('CXX') or 'c++'
READY = VENV / 'ready'
LOG = VENV / 'setup.log'
PROJECTS = sorted(ROOT.glob('projects/*/pyproject.toml'))
MMCV = ('mmcv', 'onedl-mmcv')
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmattn' / 'wheels'
#: the environment works if this runs; mmcv.ops does not import if it was compiled for another torch
IMPORTS = (
    'import torch, torchvision, timm, mmengine, mmcv.ops, mmdet, mmseg, mmpretrain, pytest, hypothesis, mmattn, mmguard'
)

#: fails if an installed file is missing; takes a second
COMPLETE = """
import csv, importlib.metadata as m, os
for d in m.distributions():
    root = str(d.locate_file(''))
    for f, *_ in csv.reader((d.read_text('RECORD') or '').splitlines()):  # d.files leaves out what is missing
        if not f.endswith('.pyc') and not os.path.exists(os.path.join(root, f)):
            raise FileNotFoundError(f)
"""


def main():
    check_machine()
    ops = ROOT / 'mmattn' / 'ops'
    kernels = sorted([*ops.glob('**/*.cpp'), *ops.glob('*.h')])
    files = [REQUIREMENTS, Path(__file__), ROOT / 'setup.py'] + PROJECTS + kernels
    fingerprint = hashlib.sha256(
        '\n'.join([sys.version, str(ROOT)] + [path.read_text('utf-8') for path in files]).encode()
    ).hexdigest()
    ready = READY.is_file() and READY.read_text('utf-8') == fingerprint and wants_compiled() == is_compiled()
    if ready and ((ops / '_cpu.abi3.so').exists() or not shutil.which(CXX)) and works(COMPLETE):
        return
    print('Setting up {}. This happens once. It takes 6 GB and about 3 minutes.'.format(VENV), flush=True)
    if not shutil.which(CXX):
        print(
            "There is no C++ compiler ({}), so mmattn's operators for the CPU are left out: the backbones work, and "
            'some are slower.'.format(CXX),
            flush=True,
        )
    started = time.time()
    if works('import pip, sys; assert sys.version == {!r}'.format(sys.version)) and works(COMPLETE):
        READY.unlink(missing_ok=True)  # unfinished, or the requirements changed: pip installs what is missing
    else:
        shutil.rmtree(str(VENV), ignore_errors=True)
        VENV.mkdir()
        step('[1/5] create a virtual environment: seconds', [sys.executable, '-m', 'venv', VENV])
    pip = [PYTHON, '-m', 'pip', '--disable-pip-version-check']
    # Python compiles what is imported, most files never; but with PYTHONDONTWRITEBYTECODE, in each process again.
    install = pip + ['install', '--compile' if sys.dont_write_bytecode else '--no-compile']
    step(
        '[2/5] install torch: about 1 minute and 3 GB',
        install + [*requirements('setuptools', 'wheel', 'ninja', 'numpy', 'torch', 'torchvision')],
    )
    wheel = mmcv_wheel(pip)
    if wants_compiled() != is_compiled():  # pip would keep the other one, which has the same version
        step('      remove another mmcv: seconds', pip + ['uninstall', '--yes', *requirements(*MMCV)])
    step(
        '[4/5] install MMEngine, MMDetection, MMSegmentation, MMPretrain and pytest: about 1 minute',
        install + ['--no-build-isolation', wheel, '-r', REQUIREMENTS],
    )
    projects = [part for path in PROJECTS for part in ('-e', path.parent)]
    step(
        '[5/5] install mmattn and its projects: about 1 minute',
        install + ['--no-build-isolation', '--no-deps', '-e', ROOT, *projects],
    )
    problem = failure(IMPORTS)
    if problem:
        if works('import torch') and not works('import mmcv.ops'):
            wheel.unlink()
        shutil.rmtree(str(VENV), ignore_errors=True)
        stop('The new environment does not work ({}). It was removed: run the same command again.'.format(problem))
    READY.write_text(fingerprint, 'utf-8')
    print('Set up in {:.0f} s.'.format(time.time() - started), flush=True)


def is_compiled():
    """Whether the environment has MMCV's compiled operators."""
    return any(VENV.glob('lib/python*/site-packages/mmcv/_ext*.so'))


def wants_compiled():
    """Whether it should have them."""
    choice = os.environ.get('MMCV_OPS')
    return choice == 'compiled' or (not choice and is_compiled())


def check_machine():
    if not REQUIREMENTS.is_file():
        stop(
            'There is no stack {}: STACK must be one of {}.'.format(
                STACK, ', '.join(sorted(path.stem for path in REQUIREMENTS.parent.glob('*.txt')))
            )
        )
    if sys.version_info < (3, 10):
        stop(
            'Python 3.10 or newer is needed, but {} is Python {}. Name another: make PYTHON=python3.11'.format(
                sys.executable, sys.version.split()[0]
            )
        )
    if STACK == 'openmmlab' and sys.version_info >= (3, 12):
        stop(
            'torch 2.1 of the stack openmmlab needs Python 3.10 or 3.11, but {} is Python {}. Name another: '
            'make STACK=openmmlab PYTHON=python3.11'.format(sys.executable, sys.version.split()[0])
        )
    try:
        import ensurepip  # noqa: F401, Debian's python3 does not include it
    except ImportError:
        stop(
            '{} cannot create virtual environments. Install what is missing, on Debian and Ubuntu with: '
            'apt-get install python3-venv'.format(sys.executable)
        )
    choice = os.environ.get('MMCV_OPS', '')
    if choice not in ('', 'compiled', 'torch'):
        stop('MMCV_OPS must be compiled or torch, not {}.'.format(choice))
    if choice != 'compiled':
        return
    if not shutil.which(CXX):
        stop(
            "There is no C++ compiler ({}), and MMCV's operators must be compiled. Install one, on Debian and Ubuntu "
            'with: apt-get install g++. Or leave out MMCV_OPS=compiled'.format(CXX)
        )
    if not (Path(sysconfig.get_paths()['include']) / 'Python.h').is_file():
        stop(
            'Python.h of {} is missing, and MMCV cannot be compiled without it. Install it, on Debian and Ubuntu with: '
            'apt-get install python3-dev. Or leave out MMCV_OPS=compiled'.format(sys.executable)
        )


def mmcv_wheel(pip):
    """Return the path of mmcv's wheel. It is built once and then kept in CACHE.

    CACHE has one folder for each version of torch that mmcv was compiled for, because the name of a wheel does not say
    it, and one for mmcv without compiled operators.
    """
    (requirement,) = requirements(*MMCV)
    (torch,) = requirements('torch')
    compiled = wants_compiled()
    folder = CACHE / (re.sub('=+', '-', torch) if compiled else 'pure')
    tag = 'cp{}{}'.format(*sys.version_info) if compiled else 'py'
    pattern = re.sub('[-=]+', '_', requirement.split('==')[0]) + '-' + requirement.split('==')[1] + '-' + tag + '*.whl'
    made = sorted(folder.glob(pattern))
    if made:
        print('[3/5] mmcv was built before: {}'.format(made[0]), flush=True)
        return made[0]
    if compiled:
        title, isolation = "[3/5] compile mmcv's operators: 5 to 15 minutes on 2 cores", '--no-build-isolation'
        # Python's own flags ask for debug information. Without it (-g0), compiling takes half as long.
        flags = dict(MMCV_WITH_OPS='1', MAX_JOBS=str(os.cpu_count()), CFLAGS=os.environ.get('CFLAGS', '') + ' -g0')
        # mmcv compiles for CUDA if it sees a GPU, which fails without CUDA's compiler. Hide the GPU then.
        if not shutil.which('nvcc') and not os.environ.get('CUDA_HOME'):
            flags['CUDA_VISIBLE_DEVICES'] = ''
    else:
        # Where mmcv is built, it must not find torch: then it compiles nothing. It may need an old setuptools.
        title, isolation = '[3/5] build mmcv without operators: seconds', '--use-pep517'
        flags = dict(PIP_CONSTRAINT=str(REQUIREMENTS))
    fresh = folder / 'unfinished-{}'.format(os.getpid())
    try:
        step(title, pip + ['wheel', '-v', '--no-cache-dir', '--no-deps', isolation, '-w', fresh, requirement], **flags)
        (built,) = fresh.glob(pattern)
        return Path(shutil.move(str(built), str(folder / built.name)))
    finally:
        shutil.rmtree(str(fresh), ignore_errors=True)


def requirements(*names):
    lines = REQUIREMENTS.read_text('utf-8').splitlines()
    return [line for line in lines if re.split('[=<>]', line)[0] in names]


def works(code):
    return failure(code) is None


def failure(code):
    """Run `code` in the environment. Return None if it works, else the last line of its output."""
    if not PYTHON.exists():
        return '{} is missing'.format(PYTHON)
    done = subprocess.run([str(PYTHON), '-c', code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd='/')
    return (
        None
        if done.returncode == 0
        else (done.stdout.decode('utf-8', 'replace').strip().splitlines() or ['no message'])[-1]
    )


def step(title, command, **environment):
    """Run a command, write its output to the log, and print progress every 30 seconds."""
    print(title, flush=True)
    started = said = time.time()
    with LOG.open('ab') as log:
        log.write('\n=== {}\n'.format(title).encode())
        log.flush()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, **environment),
            cwd=str(ROOT),
        )
        try:
            while process.poll() is None:
                time.sleep(0.5)
                if time.time() - said > 30:
                    said = time.time()
                    output = LOG.read_text('utf-8', errors='replace').split('\n=== ')[-1].partition('\n')[2]
                    counts = re.findall(r'^\s*\[(\d+)/(\d+)\]', output, re.MULTILINE)
                    files = ', {} of {} files'.format(*counts[-1]) if counts else ''
                    print('      {:.0f} s{}'.format(said - started, files), flush=True)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            stop('Interrupted. Run the same command again to go on.')
    if process.returncode:
        tail = LOG.read_text('utf-8', errors='replace').splitlines()[-15:]
        stop(
            '\n'.join(
                tail
                + ['', 'This step failed: {}. The log is {}. Run the same command again to go on.'.format(title, LOG)]
            )
        )


def stop(sentence):
    sys.exit(sentence)


if __name__ == '__main__':
    main()
