"""What could end the process: a library that is damaged or of other code, and arguments that do not fit its code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmattn.ops import library, seal
from tests import ROOT
from tests.ops.fuzz import fuzz

pytestmark = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def test_library_is_loaded(tmp_path, log):
    path = tmp_path / '_cpu.so'
    assert library._load(path) is None and not log  # without a compiler there is none, and nothing is wrong
    path.write_bytes(Path(library._C._name).read_bytes())
    assert library._load(path).axial_sum and not log


@pytest.mark.parametrize(
    'damage',
    [
        pytest.param(lambda whole: whole[: len(whole) // 2], id='cut in half'),
        pytest.param(lambda whole: whole[:-1], id='a byte is missing'),
        pytest.param(lambda whole: whole[:50_000] + bytes([whole[50_000] ^ 1]) + whole[50_001:], id='a bit is changed'),
        pytest.param(lambda whole: whole[: -seal.SIZE], id='of a version without checksums'),
        pytest.param(lambda whole: b'', id='empty'),
    ],
)
def test_damaged_library_is_not_loaded(tmp_path, monkeypatch, log, damage):
    path = tmp_path / '_cpu.so'
    path.write_bytes(damage(Path(library._C._name).read_bytes()))
    monkeypatch.setattr(library.ctypes, 'CDLL', None)  # what would end the process is not called
    assert library._load(path) is None
    assert log == [
        f'{path} cannot be used, and slower code serves instead: it is damaged, or was compiled from another version '
        'of mmattn. To compile it, install mmattn again.'
    ]


def test_library_of_other_code_is_not_loaded(tmp_path, monkeypatch, log):
    """One that was compiled before the code changed may take other arguments."""
    for path in seal.SOURCES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes() + b'\n')
    monkeypatch.setattr(seal, 'SOURCES', tmp_path)
    library_path = tmp_path / '_cpu.so'
    library_path.write_bytes(Path(library._C._name).read_bytes())
    assert library._load(library_path) is None and 'compiled from another version' in log[0]


def test_library_for_another_machine_is_told(tmp_path, log):
    path = tmp_path / '_cpu.so'
    path.write_bytes(b'not for this machine')
    seal.seal(path)
    assert library._load(path) is None and 'OSError' in log[0] and len(log) == 1


def test_random_calls():
    """torch.ops.mmattn.* checks what it is given, by whomever: shapes, dtypes, devices, layouts, None, huge numbers."""
    counts = fuzz(seed=0, calls=150)
    assert counts['right'] > 20 and counts['ValueError'] > 20, counts


@pytest.mark.slow
@pytest.mark.parametrize('seed', [1, 2])
def test_random_calls_read_and_write_within_bounds(tmp_path, seed):
    """The same with code that AddressSanitizer watches."""
    compiler = shutil.which(os.environ.get('CXX', 'g++'))
    sanitized = [tmp_path / 'sanitized.so', *seal.SOURCES.glob('*.cpp')]
    command = [
        compiler,
        *'-std=c++17 -O1 -g -fopenmp -Wno-psabi -fsanitize=address -shared -fPIC -o'.split(),
        *sanitized,
    ]
    built = compiler and subprocess.run(command, capture_output=True, text=True)
    if not built or built.returncode:
        pytest.skip(f'{compiler} has no AddressSanitizer: {built and built.stderr[-200:]}')
    found = [
        subprocess.run([compiler, f'-print-file-name={name}'], capture_output=True, text=True).stdout.strip()
        for name in ('libasan.so', 'libstdc++.so')
    ]
    if not all(map(os.path.isabs, found)):
        pytest.skip(f'{compiler} has no library libasan.so to load first')
    done = subprocess.run(
        [sys.executable, '-m', 'tests.ops.fuzz', str(seed), '2000', str(sanitized[0])],
        env={
            **os.environ,
            'PYTHONPATH': str(ROOT),
            'LD_PRELOAD': ':'.join(found),
            'ASAN_OPTIONS': 'detect_leaks=0:allocator_may_return_null=1',
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and 'right' in done.stdout, done.stderr[-3000:]
