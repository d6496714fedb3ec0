"""tools/dev/gpu_check.py with steps of its own kind: nothing here needs a GPU."""

import json
import os
import subprocess
import sys
import time
import zipfile
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from mmengine.config import Config

from tests import ROOT
from tests.tools.in_process import load_tool

sys.path.append(str(ROOT / 'tools' / 'dev'))
gpu_check = load_tool('dev/gpu_check')
gpu_operators = load_tool('dev/gpu_operators')
gpu_bundle = load_tool('dev/gpu_bundle')

#: compiles kernels, and runs them again with their files and a Triton of another build
KERNELS = """
import os, sys
from pathlib import Path
from unittest import mock
import gpu_kernels, torch
from mmattn.ops.batch_norm import triton as norm
folder, call = Path(sys.argv[1]), lambda: gpu_kernels.operators([('norm and ReLU', (1, 4, 4, 1, 16))], torch.bfloat16)
with gpu_kernels.kept(folder / 'kernels'):
    call()
for kernel in (norm._norm_statistics, norm._norm_relu, norm._norm_relu_sums, norm._norm_relu_gradient):
    kernel.fn.device_caches.clear()
os.environ['TRITON_CACHE_DIR'] = str(folder / 'other')
with mock.patch('triton.runtime.cache.triton_key', lambda: 'of another build'):
    gpu_kernels.use(folder / 'kernels')
    call()
"""
#: waits for its turn, and writes that it begins and ends
TURN = """
touch $MMATTN_GPU_TURN.ready
while [ ! -e $MMATTN_GPU_TURN.go ]; do sleep 0.05; done
echo begin >> {times}; sleep 0.3; echo end >> {times}
"""


def step(name, code, limit=60):
    return gpu_check.Step(name, [sys.executable, '-c', code], limit)


def results(folder):
    """Step -> its section of the results."""
    return dict(section.split(': ', 1) for section in (folder / 'results.md').read_text().split('\n### ')[1:])


def test_every_end_is_written(tmp_path):
    """A step that passes, fails or hangs does not stop the next one, and leaves no process. Tables and the output of
    what failed are shown. What no time is left for is named."""
    child = tmp_path / 'child'
    steps = [
        step('good', r'print("| a |\n|---|\n| 1 |\n\n| none |"); [print(i) for i in range(50)]'),
        step('bad', 'import sys; sys.exit("this went wrong")'),
        gpu_check.Step('slow', ['sh', '-c', f'sleep 60 & echo $! > {child}; wait'], 1),
        step('last', ''),
    ]
    assert gpu_check.run({'all': gpu_check.Group(steps)}, tmp_path, 600, dict(os.environ)) == 2
    written = results(tmp_path)
    assert list(written) == ['good', 'bad', 'slow', 'last']
    assert written['good'].startswith('passed') and written['good'].endswith('| a |\n|---|\n| 1 |\n\n')
    assert written['bad'].startswith('FAILED') and 'this went wrong' in written['bad']
    assert written['slow'].startswith('STOPPED after 1 s') and written['last'].startswith('passed')
    assert '\n49\n' in (tmp_path / 'steps.log').read_text()
    with pytest.raises(ProcessLookupError):
        for _ in range(50):
            os.kill(int(child.read_text()), 0)
            time.sleep(0.1)
    assert gpu_check.run({'all': gpu_check.Group(steps[:1])}, tmp_path, -1, dict(os.environ)) == 0
    assert results(tmp_path)['good'].startswith('left out')


def test_turns(monkeypatch, tmp_path):
    """Processes prepare side by side, and work one after the other. One that is never ready is stopped."""
    times = tmp_path / 'times'
    work, never = ['sh', '-c', TURN.format(times=times)], ['sleep', '60']
    steps = [gpu_check.Step(name, never if name == 'never' else work, 60) for name in ('a', 'never', 'b')]
    monkeypatch.setattr(os, 'cpu_count', lambda: 3)
    assert gpu_check.run({'all': gpu_check.Group(steps, prepare=3)}, tmp_path, 600, dict(os.environ)) == 1
    assert [end.split(',')[0] for end in results(tmp_path).values()] == [
        'passed',
        'STOPPED before it was ready',
        'passed',
    ]
    assert times.read_text().split() == ['begin', 'end'] * 2


def test_figures():
    """Figures are beside those of the peer, for compiled models of another one, and lines of other tables stay
    together."""
    rows = [
        dict(machine='a GPU'),
        dict(model='msf-swin-t', step='training', figures={'eager ms': 30, 'compiled ms': 9}),
        dict(table=dict(backbone='a', loss=1)),
        dict(model='swin-t', step='training', figures={'eager ms': 60}),
        dict(model='timm-swin-t', step='training', figures={'compiled ms': 6}),
        dict(table=dict(other=3)),
        dict(table=dict(backbone='b', loss=2)),
    ]
    lines = gpu_check.figures_table(rows).splitlines()
    assert lines[0] == '# a GPU'
    assert lines[4] == '| training | msf-swin-t | swin-t | 30 (0.50) |  |  |  |  | 9 (1.50) |  |  |'
    assert lines[-8:] == [
        '| backbone | loss |',
        '|---|---|',
        '| a | 1 |',
        '| b | 2 |',
        '',
        '| other |',
        '|---|',
        '| 3 |',
    ]


@pytest.mark.parametrize('name', ['mask-rcnn gsa-r50', 'upernet r50'])
def test_config_of_a_whole_model(tmp_path, name):
    """It has the images of the folder, nothing to download, the steps of the check, and can be read again."""
    pytest.importorskip('mmdet' if 'rcnn' in name else 'mmseg')
    file = tmp_path / 'config.py'
    gpu_check.whole_config(name, gpu_check.SIZES['cpu'], tmp_path).dump(file)
    cfg = Config.fromfile(file)
    assert cfg.model.backbone.init_cfg is None and cfg.train_cfg.max_iters == 2 and cfg.val_dataloader is None
    assert cfg.train_dataloader.dataset.data_root.startswith(str(tmp_path))
    assert (96, 64) in [t.get('scale') for t in cfg.train_dataloader.dataset.pipeline] or 'upernet' in name


def test_all_are_there():
    """Configs of whole models exist, and operators that are measured have maps."""
    assert all((ROOT / file).is_file() for of in gpu_check.HEADS.values() for file in of.values())
    assert gpu_operators.MAPS.keys() == gpu_operators.OPERATORS.keys()


def test_packages_of_the_bundle():
    """They are what the machine lacks, and what is compiled is apart."""
    try:
        pure, compiled = gpu_bundle.requirements()
    except PackageNotFoundError as error:
        pytest.skip(f'the bundle is of the packages onedl-*: {error}')
    names = {requirement.split('==')[0] for requirement in pure + compiled}
    assert {'onedl-mmengine', 'addict'} <= names and not names & {'torch', 'numpy', 'onedl-mmcv'}
    assert [name for name in compiled if name.startswith('pycocotools==')]


def test_unpacking_a_bundle(tmp_path):
    """A checkout without mmattn's library gets that of the bundle."""
    file, root = tmp_path / 'bundle.zip', tmp_path / 'root'
    (root / gpu_bundle.LIBRARY).parent.mkdir(parents=True)
    with zipfile.ZipFile(file, 'w') as packed:
        packed.writestr('_cpu.abi3.so', 'library')
        packed.writestr('site/package.py', '')
    assert (gpu_bundle.unpack(file, tmp_path / 'folder', root) / 'site' / 'package.py').exists()
    assert (root / gpu_bundle.LIBRARY).read_text() == 'library'


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < (2, 11), reason='tools/dev/launches.py needs torch 2.11')
def test_kernels_compiled_ahead(tmp_path):
    """Another build of the same Triton finds all kernels in its cache, and what a process takes from it is noted."""
    env = {name: text for name, text in os.environ.items() if name != 'TRITON_INTERPRET'}
    env |= dict(
        PYTHONPATH=os.pathsep.join(map(str, (ROOT, ROOT / 'tools' / 'dev'))),
        TRITON_CACHE_DIR=str(tmp_path / 'cache'),
        TRITON_CACHE_MANAGER='gpu_kernels:CountingCache',
        MMATTN_GPU_TURN=str(tmp_path / 'turn'),
    )
    subprocess.run([sys.executable, '-c', KERNELS, tmp_path], env=env, check=True)
    noted = (tmp_path / 'turn.kernels').read_text().split()
    names = ['_norm_statistics', '_norm_relu', '_norm_relu_sums', '_norm_relu_gradient']
    assert noted[1::2] == names * 2 and noted[::2] == ['compiled'] * 4 + ['cached'] * 4
    launchers = json.loads((tmp_path / 'kernels' / 'kernels.json').read_text())['launchers']
    assert launchers and all('PyInit___triton_launcher' in source for source in launchers)


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
    assert gpu_operators.defaults(rows).splitlines()[2:-2] == [
        '| a | half | triton | shifted | 0.50 | NO |',
        '| b | half | triton | triton | 1.00 | yes |',
        '| c | half | triton | shifted | the default failed | NO |',
    ]


@pytest.mark.slow
def test_dry_run(monkeypatch, tmp_path):
    """All steps of the dry run that other tests do not run end well."""
    monkeypatch.setattr(
        sys, 'argv', ['gpu_check.py', '--device', 'cpu', '--out', str(tmp_path), '--steps', 'eager', 'half', 'whole']
    )
    gpu_check.main()
    written = (tmp_path / 'results.md').read_text()
    assert '| inference | gsa-r50 | r50 |' in written and '| mask-rcnn | gsa-r50 |' in written


@pytest.mark.slow
def test_host_calls_need_no_gpu():
    """What the host does in a step on a GPU is counted without one, for a model and its peer, with Triton's kernels: a
    training step has more calls than inference."""
    pytest.importorskip('triton')
    command = [sys.executable, ROOT / 'tools' / 'dev' / 'host_calls.py', 'dinat-t', '--runs', '1']
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in result.stdout.splitlines()[2:]]
    steps, models = ('inference', 'training'), ('swin-t', 'dinat-t')
    assert [row[:2] for row in rows] == [[step, model] for step in steps for model in models]
    counts = [int(row[3].replace(',', '')) for row in rows]
    assert all(0 < inference < training for inference, training in zip(counts[:2], counts[2:]))
