"""The Triton kernels compile for GPUs that are not here, and their programs fit them."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

triton = pytest.importorskip('triton')
if tuple(map(int, triton.__version__.split('.')[:2])) < (3, 6):
    pytest.skip(f'tools/dev/triton_report.py needs Triton 3.6, not {triton.__version__}', allow_module_level=True)


@pytest.mark.parametrize(
    'arch, dtypes, kernel_sizes, ghosts',
    [
        (80, ['bfloat16'], [7], ['add']),
        *(
            pytest.param(arch, ['float32', 'bfloat16', 'float16'], sizes, ghosts, marks=pytest.mark.slow)
            for arch in (75, 80, 90, 100)
            for sizes, ghosts in (([7], ['', 'add', 'mul+add']), ([3, 5], ['add']))
        ),
    ],
)
def test_kernels_fit_a_gpu(tmp_path, arch, dtypes, kernel_sizes, ghosts):
    """No kernel spills registers or takes so many that few programs fit a multiprocessor. All four are compiled."""
    options = [f'--arch={arch}', *(f'--dtype={dtype}' for dtype in dtypes)]
    options += [*(f'--kernel-size={k}' for k in kernel_sizes), *(f'--ghost={ghost}' for ghost in ghosts)]
    command = [sys.executable, ROOT / 'tools' / 'dev' / 'triton_report.py', '--json', *options]
    # A new process, because this one interprets kernels. An empty cache, so that they are compiled.
    env = {**os.environ, 'TRITON_CACHE_DIR': str(tmp_path)}
    rows = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    assert {row['kernel'] for row in rows} == {'_sum', '_sum (reverse)', '_logits_gradient', '_ghost_gradient'}
    for row in rows:
        assert row['spills'] == 0 and 0 < row['registers'] <= 128, row
