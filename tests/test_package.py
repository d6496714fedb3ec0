import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import zipfile

import pytest
import yaml

from mmattn import packages
from mmattn.packages import MissingPackage
from tests import ROOT


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, '-c', code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT), **environment},
    )


def test_what_is_imported():
    """The tools import OpenMMLab's models, and the code of sharded training, only for configs that need them. mmattn
    does not import mmcv, mmdet, mmseg and mmpretrain, and its backbones run without them, in their small forms."""
    done = run_python("""
import sys, torch, mmengine.runner
before = set(sys.modules)
import mmattn.runs.running, mmattn.runs.configs
names = ('mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'mmengine._strategy', 'torch.distributed.checkpoint')
seen = [name for name in set(sys.modules) - before if name.startswith(names) or name == 'mmattn.runs.sharding']
assert not seen, seen
for absent in names[:4]:
    sys.modules[absent] = None
from tests.backbones.cases import CASES
for case in CASES.values():
    backbone = case.build(case.small)
    backbone.init_weights()
    print(len(backbone(torch.zeros(1, 3, 64, 64))))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_missing_mmengine_is_told():
    done = run_python('import sys; sys.modules["mmengine"] = None; import mmattn')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        'mmattn.packages.MissingPackage: mmattn needs mmengine 0.10.0 or newer, which is not installed: '
        'pip install mmengine or onedl-mmengine, whichever family the environment has.'
    )


@pytest.mark.parametrize('installed, fits', [('3.2.0', False), ('3.3.0', True), ('3.10.1', True), ('4.0.0rc1', True)])
def test_versions_are_compared_as_numbers(monkeypatch, installed, fits):
    import mmdet

    monkeypatch.setattr(mmdet, '__version__', installed)
    if fits:
        packages.require('mmdet', 'this')
    else:
        with pytest.raises(MissingPackage, match='needs mmdet 3.3.0 or newer, but 3.2.0 is installed'):
            packages.require('mmdet', 'this')


#: a step of a backbone in a plain loop, then in MMEngine's Runner; the same Runner has run another model before
GUEST = """
import sys, torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmdet.utils import register_all_modules as register_mmdet
from mmseg.utils import register_all_modules as register_mmseg
from tests.process_state import changes, process_state

class Model(BaseModel):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x, mode='tensor'):
        return dict(loss=self.backbone(x)[-1].square().mean())

def run(backbone, name):
    Runner(
        Model(backbone), sys.argv[1], torch.utils.data.DataLoader([dict(x=torch.zeros(3, 64, 64))] * 2, batch_size=2),
        train_cfg=dict(by_epoch=True, max_epochs=1), optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        experiment_name=name, log_level='WARNING',
    ).train()

register_mmdet(init_default_scope=False)
register_mmseg(init_default_scope=False)
run(torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1)), 'before')
before = process_state()

import mmattn

from tests.backbones.cases import CASES

assert set(CASES) == set(mmattn.backbones.__all__)
for case in CASES.values():
    backbone = case.build(case.small)
    backbone.init_weights()
    sum(out.square().mean() for out in backbone(torch.zeros(1, 3, 64, 64))).backward()
    torch.optim.SGD(backbone.parameters(), 0.1).step()
run(backbone, 'after')
print(*changes(before), sep='\\n')
"""

#: a training by tools/train.py, after MMEngine's Runner has set up one by the same config
TOOL = """
import runpy, sys, torch
from mmdet.utils import register_all_modules as register_mmdet
from mmengine.config import Config
from mmengine.runner import Runner
from tests.process_state import changes, process_state

register_mmdet(init_default_scope=False)
_, folder, config, *options = sys.argv
cfg = Config.fromfile(config)
cfg.work_dir = folder
Runner.from_cfg(cfg)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # torch changes the class when it is first used
before = process_state()
sys.argv = ['train.py', config, '--work-dir', folder, '--cfg-options', *options]
runpy.run_path('tools/train.py', run_name='__main__')
print(*(change for change in changes(before) if 'LOCAL_RANK' not in change), sep='\\n')  # MMEngine reads it from there
"""


def changes_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if ' became ' in line]


def test_library_is_a_guest(tmp_path):
    """Importing mmattn and training its backbones changes nothing in MMEngine, MMCV, MMDetection, torch and Python.

    Only names are added to registries.
    """
    done = run_python(GUEST, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not changes_in(done.stdout)


@pytest.mark.slow
def test_tools_undo_what_they_change(tmp_path):
    """After tools/train.py, nothing in this process is different from what MMEngine's own Runner leaves."""
    toy = tmp_path / 'toy'
    make_toy_data = ROOT / 'tools' / 'dev' / 'make_toy_data.py'
    subprocess.run([sys.executable, make_toy_data, toy, '--train', '2', '--val', '1'], check=True, capture_output=True)
    done = run_python(
        TOOL,
        str(tmp_path / 'work'),
        'configs/toy/mask-rcnn_shunted-toy_fpn.py',
        'train_cfg.max_epochs=1',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        COCO_ROOT=f'{toy}/coco/',
        CUDA_VISIBLE_DEVICES='',
    )
    assert done.returncode == 0, done.stderr
    assert 'Saving checkpoint at 1 epochs' in done.stdout + done.stderr
    assert not changes_in(done.stdout)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """A wheel built from a copy of the project, as pip builds it."""
    folder = tmp_path_factory.mktemp('wheel')
    subprocess.run(['git', 'clone', '-q', str(ROOT), str(folder / 'source')], check=True)
    for changed in subprocess.run(
        ['git', 'ls-files', '-mo', '--exclude-standard'], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout.split():
        (folder / 'source' / changed).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / changed).exists():
            (folder / 'source' / changed).write_bytes((ROOT / changed).read_bytes())
    build = 'import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])'
    subprocess.run([sys.executable, '-c', build, folder], cwd=folder / 'source', check=True, capture_output=True)
    (path,) = folder.glob('*.whl')
    return zipfile.ZipFile(path)


def test_wheel_changes_no_torch(wheel):
    """Installing mmattn cannot change anybody's torch or OpenMMLab packages: torch needs filelock itself,
    and timm takes any torch."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith('METADATA'))
    required = re.findall('Requires-Dist: (.*)', wheel.read(metadata).decode())
    assert required == ['filelock', 'safetensors', 'timm', 'tqdm'] and 'filelock' in importlib.metadata.requires(
        'torch'
    )
    assert {'torch', 'torchvision'} <= set(importlib.metadata.requires('timm'))


def test_wheel_carries_mim(wheel):
    """Configs, tools and model index stand where OpenMMLab's mim looks for them, every config and tool of them."""
    names = set(wheel.namelist())
    for folder in ('configs', 'tools'):
        for file in (ROOT / folder).rglob('*'):
            if file.suffix in ('.py', '.sh', '.yml', '.md'):
                assert f'mmattn/.mim/{file.relative_to(ROOT)}' in names
    assert 'mmattn/.mim/model-index.yml' in names and 'mmattn/ops/elsa.py' in names


def test_wheel_carries_its_library(wheel, tmp_path):
    """The compiled library that pip builds is whole, with the code that it is compared with."""
    wheel.extractall(tmp_path, [name for name in wheel.namelist() if name.startswith('mmattn/ops/')])
    (library,) = (tmp_path / 'mmattn' / 'ops').glob('_cpu.*')
    assert runpy.run_path(str(library.with_name('seal.py')))['is_sealed'](library)


def test_wheel_carries_licence(wheel):
    """Whoever gets the package gets the licence, too."""
    assert any(name.endswith('LICENSE') for name in wheel.namelist())


def test_model_index_is_read_by_mim():
    """Lists in Metadata have no numbers: mim joins them as text, and would show no model at all."""
    (pattern,) = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    for file in ROOT.glob(pattern):
        index = yaml.safe_load(file.read_text())
        for entry in index['Collections'] + index['Models']:
            for value in entry.get('Metadata', {}).values():
                assert not isinstance(value, list) or all(isinstance(item, str) for item in value), entry['Name']
