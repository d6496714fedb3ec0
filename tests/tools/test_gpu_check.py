"""tools/dev/gpu_check.py with steps of its own kind: nothing here needs a GPU."""

import os
import re
import sys
import time

import pytest

from tests import ROOT
from tests.tools.in_process import load_tool

gpu_check = load_tool('dev/gpu_check')


def python(code):
    return [sys.executable, '-c', code]


def results(folder):
    """Step -> its section of the results."""
    return dict(section.split(': ', 1) for section in (folder / 'results.md').read_text().split('\n## ')[1:])


def test_every_end_is_written(tmp_path):
    """A step that passes, fails, hangs or lacks a package does not stop the next one. Ends and Markdown's tables are
    shown."""
    child = tmp_path / 'child'
    hang = (
        f'import subprocess as s; p = s.Popen(["sleep", "60"]); open({str(child)!r}, "w").write(str(p.pid)); p.wait()'
    )
    steps = [
        gpu_check.Step('good', python(r'print("| a |\n|---|\n| 1 |\n\n| none |"); [print(i) for i in range(50)]')),
        gpu_check.Step('bad', python('import sys; sys.exit("this went wrong")')),
        gpu_check.Step('slow', python(hang)),
        gpu_check.Step('else', python(''), ('torch', 'no_such_package')),
        gpu_check.Step('last', python('print("still here")'), ('torch',)),
    ]
    assert gpu_check.run_steps(steps, tmp_path, step_limit=2) == 2
    written = results(tmp_path)
    assert list(written) == ['good', 'bad', 'slow', 'else', 'last']
    assert re.match(r'passed, \d+ s\n\n\| a \|\n\|---\|\n\| 1 \|\n\n```\n45\n', written['good'])
    assert written['bad'].startswith('FAILED') and 'this went wrong' in written['bad']
    assert written['slow'].startswith('STOPPED')
    assert written['else'].startswith("left out\n\nNo module named 'no_such_package'")
    assert written['last'].startswith('passed') and 'still here' in written['last']
    assert len((tmp_path / 'good.log').read_text().splitlines()) == 55
    with pytest.raises(ProcessLookupError):  # what a stopped step started is stopped too
        for _ in range(50):
            os.kill(int(child.read_text()), 0)
            time.sleep(0.1)


@pytest.mark.parametrize('device', ['cuda', 'cpu'])
def test_steps_name_what_exists(tmp_path, device):
    """Scripts, tests and configs in the commands are there, also where MMDetection is missing."""
    steps = gpu_check.steps(tmp_path, device)
    assert len({step.name for step in steps}) == len(steps) and steps[0].name == 'environment'
    files = {part for step in steps for part in map(str, step.command) if re.match(r'(tests|tools|configs)/', part)}
    assert len(files) >= 5 and all((ROOT / file).is_file() for file in files)
    for config in gpu_check.TOY:
        assert (ROOT / 'projects/lab/configs/toy' / f'{config}.py').is_file()


def test_defaults():
    """The fastest of the backends that passed is named, and whether it is the default. Others are not in the table."""

    def row(operator, backend, seconds, default=False, passed=True):
        return dict(operator=operator, dtype='half', backend=backend, passed=passed, default=default, seconds=seconds)

    rows = [
        row('a', 'triton', [4e-3, 1e-3], default=True),
        row('a', 'wrong', [1e-9, 1e-9], passed=False),
        row('a', 'shifted', [1e-3, 1e-3]),
        row('b', 'triton', [1e-3], default=True),
        row('b', 'shifted', [2e-3]),
        row('c', 'triton', [], default=True, passed=False),
        row('c', 'shifted', [2e-3]),
        dict(operator='d', dtype='half', backend='triton', passed=True),  # interrupted before it was measured
    ]
    assert gpu_check.defaults(rows).splitlines()[2:-2] == [
        '| a | half | triton | shifted | 0.50 | NO |',
        '| b | half | triton | triton | 1.00 | yes |',
        '| c | half | triton | shifted | the default failed | NO |',
    ]


@pytest.mark.slow
@pytest.mark.usefixtures('triton_runs')
def test_dry_run(monkeypatch, tmp_path):
    """The steps that other tests do not run end well on the CPU, and the kernels are the defaults that a GPU has."""
    for name, value in gpu_check.DRY_RUN.items():
        monkeypatch.setenv(name, value)
    names = 'operators', 'training elsa-swin-toy_upernet', 'SyncBN on two GPUs'
    steps = [step for step in gpu_check.steps(tmp_path, 'cpu') if step.name in names]
    assert gpu_check.run_steps(steps, tmp_path) == 0
    assert [end.split(',')[0] for end in results(tmp_path).values()] == ['passed'] * 3
    assert '| elsa | torch.bfloat16 | triton |' in results(tmp_path)['operators']
