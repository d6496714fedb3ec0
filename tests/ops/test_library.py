"""What could end the process: a library of other code, and arguments that do not fit its code."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from mmattn.ops import library
from tests import ROOT
from tests.ops.fuzz import fuzz

pytestmark = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def test_library_is_loaded(tmp_path, log):
    path = tmp_path / '_cpu.so'
    assert library._load(path) is None and not log  # without a compiler there is none, and nothing is wrong
    shutil.copy(library._C._name, path)
    assert library._load(path).axial_sum and not log


def test_library_of_other_code_is_not_used(monkeypatch, tmp_path, log):
    """One that was compiled before arguments changed would read wherever the new ones point."""
    path = shutil.copy(library._C._name, tmp_path / '_cpu.so')
    monkeypatch.setattr(library, 'VERSION', library.VERSION + 1)
    assert library._load(path) is None
    assert log == [
        f'{path} cannot be used, and slower code serves instead: it was compiled from another version of mmattn. To '
        'compile it, install mmattn again.'
    ]


def test_library_for_another_machine_is_told(tmp_path, log):
    path = tmp_path / '_cpu.so'
    path.write_bytes(b'not for this machine')
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
    sanitized = [tmp_path / 'sanitized.so', *(ROOT / 'mmattn' / 'ops').rglob('*.cpp')]
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


def test_rows_of_narrow_maps():
    """Kernels read the stride of the columns, which torch leaves as it is where there is one column."""
    x = torch.randn(2, 1, 3, 4).transpose(1, 2)
    rows, stride = library.rows_of(x)
    assert x.stride(2) == 12 and rows.stride(2) == stride == 4
    torch.testing.assert_close(rows, x)
