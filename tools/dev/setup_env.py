"""Build the project's own environment, or repair it. Every target of the Makefile runs this first.

The environment variable STACK names the packages: a file in requirements/. The stack "onedl" is the default and is
installed in .venv; another one is installed in .venv-STACK.

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
READY = VENV / 'ready'
LOG = VENV / 'setup.log'
PROJECTS = sorted(ROOT.glob('projects/*/pyproject.toml'))
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmattn' / 'wheels'
#: the environment works if this runs; mmcv.ops does not import if it was compiled for another torch
IMPORTS = (
    'import torch, torchvision, timm, mmengine, mmcv.ops, mmdet, mmseg, mmpretrain, pytest, hypothesis, mmattn, mmguard'
)

#: fails if an installed file is missing; takes a second
COMPLETE = """
import importlib.metadata as m, os
for d in m.distributions():
    root = str(d.locate_file(''))
    for f in d.files or ():
        if f.suffix != '.pyc' and not os.path.exists(os.path.join(root, f)):
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
    compiled = (ops / '_cpu.abi3.so').exists()
    if READY.is_file() and READY.read_text('utf-8') == fingerprint and compiled and works(COMPLETE):
        return
    print(
        'Setting up {}. This happens once. It takes 6 GB, about 3 minutes, and 5 to 15 minutes more (on 2 cores) if '
        'mmcv must be compiled.'.format(VENV),
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
    step(
        '[2/5] install torch: about 1 minute and 3 GB',
        pip + ['install', *requirements('setuptools', 'wheel', 'ninja', 'psutil', 'numpy', 'torch', 'torchvision')],
    )
    wheel = mmcv_wheel(pip)
    step(
        '[4/5] install MMEngine, MMDetection, MMSegmentation, MMPretrain and pytest: about 1 minute',
        pip + ['install', '--no-build-isolation', wheel, '-r', REQUIREMENTS],
    )
    projects = [part for path in PROJECTS for part in ('-e', path.parent)]
    step(
        '[5/5] install mmattn and its projects: seconds',
        pip + ['install', '--no-build-isolation', '--no-deps', '-e', ROOT, *projects],
    )
    problem = failure(IMPORTS)
    if problem:
        if works('import torch') and not works('import mmcv.ops'):
            wheel.unlink()
        shutil.rmtree(str(VENV), ignore_errors=True)
        stop('The new environment does not work ({}). It was removed: run the same command again.'.format(problem))
    READY.write_text(fingerprint, 'utf-8')
    print('Set up in {:.0f} s.'.format(time.time() - started), flush=True)


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
    if not shutil.which(os.environ.get('CXX', 'c++')):
        stop(
            "There is no C++ compiler ({}), and MMCV's operators must be compiled. Install one, on Debian and Ubuntu "
            'with: apt-get install g++'.format(os.environ.get('CXX', 'c++'))
        )
    if not (Path(sysconfig.get_paths()['include']) / 'Python.h').is_file():
        stop(
            'Python.h of {} is missing, and MMCV cannot be compiled without it. Install it, on Debian and Ubuntu with: '
            'apt-get install python3-dev'.format(sys.executable)
        )
    try:
        import ensurepip  # noqa: F401, Debian's python3 does not include it
    except ImportError:
        stop(
            '{} cannot create virtual environments. Install what is missing, on Debian and Ubuntu with: '
            'apt-get install python3-venv'.format(sys.executable)
        )


def mmcv_wheel(pip):
    """Return the path of the compiled mmcv. It is compiled once and then kept in CACHE.

    CACHE has one folder for each version of torch, because the name of a wheel does not say what it was compiled for.
    """
    (requirement,) = requirements('mmcv', 'onedl-mmcv')
    (torch,) = requirements('torch')
    folder = CACHE / re.sub('=+', '-', torch)
    tag = 'cp{}{}'.format(*sys.version_info)
    pattern = re.sub('[-=]+', '_', requirement.split('==')[0]) + '-' + requirement.split('==')[1] + '-' + tag + '*.whl'
    made = sorted(folder.glob(pattern))
    if made:
        print('[3/5] mmcv was compiled before: {}'.format(made[0]), flush=True)
        return made[0]
    # mmcv compiles for CUDA if it sees a GPU, which fails without CUDA's compiler. Hide the GPU then.
    gpu = {} if shutil.which('nvcc') or os.environ.get('CUDA_HOME') else {'CUDA_VISIBLE_DEVICES': ''}
    # Python's own flags ask for debug information. Without it (-g0), compiling takes half as long.
    fresh = folder / 'unfinished-{}'.format(os.getpid())
    try:
        step(
            "[3/5] compile mmcv's operators: 5 to 15 minutes on 2 cores",
            pip + ['wheel', '-v', '--no-cache-dir', '--no-deps', '--no-build-isolation', '-w', fresh, requirement],
            MMCV_WITH_OPS='1',
            MAX_JOBS=str(os.cpu_count()),
            CFLAGS=os.environ.get('CFLAGS', '') + ' -g0',
            **gpu,
        )
        (compiled,) = fresh.glob(pattern)
        return Path(shutil.move(str(compiled), str(folder / compiled.name)))
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
