import email
import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement

from mmattn import packages
from mmattn.packages import MissingPackage
from mmattn.version import __version__
from tests import ROOT
from tests.fresh import run_python


def test_what_is_imported():
    """timm, torchvision and what draws take seconds, and so do OpenMMLab's packages: a backbone is imported and built
    without them, and runs where those of OpenMMLab are missing. A config needs no custom_imports for a backbone with
    the scope mmattn. The tools import the packages, and the code of sharded training, only for configs that need
    them."""
    done = run_python("""
import sys, torch
from mmengine.registry import MODELS
assert 'mmattn' not in sys.modules
with torch.device('meta'):
    backbone = MODELS.build(dict(type='mmattn.ELSASwin', arch='tiny'))
assert type(backbone) is sys.modules['mmattn'].backbones.ELSASwin
names = ('mmcv', 'mmdet', 'mmseg', 'mmpretrain')
others = 'timm', 'torchvision', 'matplotlib', 'cv2', 'transformers', 'mmattn.own_data'
seen = {*names, *others} & set(sys.modules)
assert not seen, seen
import mmengine.runner
before = set(sys.modules)
import mmguard.runs.running, mmguard.runs.configs
names += ('mmengine._strategy', 'torch.distributed.checkpoint')
seen = [name for name in set(sys.modules) - before if name.startswith(names) or name == 'mmguard.runs.sharding']
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
    code = 'import sys; sys.modules["mmengine"] = None; import mmattn'
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        'mmattn.packages.MissingPackage: mmattn needs mmengine 0.10.0 or newer, which is not installed: '
        'pip install --upgrade onedl-mmengine, or mmengine if the environment has other packages of OpenMMLab itself.'
    )


@pytest.mark.parametrize('installed, fits', [('3.2.0', False), ('3.10.1', True)])
def test_versions_are_compared_as_numbers(monkeypatch, installed, fits):
    import mmdet

    monkeypatch.setattr(mmdet, '__version__', installed)
    if fits:
        packages.require('mmdet', 'this')
    else:
        with pytest.raises(MissingPackage, match='needs mmdet 3.3.0 or newer, but 3.2.0 is installed'):
            packages.require('mmdet', 'this')


def test_two_families_in_one_environment(monkeypatch):
    """They have the same files, so that what is imported is a mixture of both."""
    monkeypatch.setattr(packages, 'distributions', lambda name: [name])
    with pytest.raises(MissingPackage, match='onedl-mmdetection and mmdet both .*uninstall onedl-mmdetection mmdet'):
        packages.require('mmdet', 'this')


def test_a_folder_with_operators_alone_is_no_mmcv(monkeypatch):
    """mmattn_mmcv_ops leaves it where MMCV is not installed."""
    monkeypatch.setitem(sys.modules, 'mmcv', ModuleType('mmcv'))
    with pytest.raises(MissingPackage, match='needs mmcv 2.1.0 or newer, which is not installed'):
        packages.require('mmcv', 'this')


#: a step of a backbone in a plain loop, then in MMEngine's Runner; the same Runner has run another model before
GUEST = """
import importlib, sys, torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
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

for package in sys.argv[2:]:
    importlib.import_module(f'{package}.utils').register_all_modules(init_default_scope=False)
run(torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1)), 'before')
before = process_state()

import mmattn

from tests.backbones.cases import CASES

assert set(CASES) == set(mmattn.backbones.__all__) - {'TimmBackbone'}  # timm's own models
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
import mmguard.checks.coco, mmguard.runs.running  # which add names to registries
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


@pytest.mark.parametrize(
    'packages', [(), pytest.param(('mmdet', 'mmseg'), marks=pytest.mark.slow)], ids=['MMEngine', 'packages above it']
)
def test_library_is_a_guest(tmp_path, packages):
    """Importing mmattn and training its backbones changes nothing in MMEngine, torch and Python, and nothing in MMCV,
    MMDetection and MMSegmentation, which :func:`test_what_is_imported` finds unused.

    Only names are added to registries.
    """
    done = run_python(GUEST, tmp_path, *packages)
    assert done.returncode == 0, done.stderr
    assert not changes_in(done.stdout)


@pytest.mark.slow
def test_tools_undo_what_they_change(tmp_path):
    """After tools/train.py, nothing in this process is different from what MMEngine's own Runner leaves."""
    toy = tmp_path / 'toy'
    make_toy_data = ROOT / 'projects/lab/tools/make_toy_data.py'
    subprocess.run([sys.executable, make_toy_data, toy, '--train', '2', '--val', '1'], check=True, capture_output=True)
    done = run_python(
        TOOL,
        tmp_path / 'work',
        'projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn.py',
        'train_cfg.max_epochs=1',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        COCO_ROOT=f'{toy}/coco/',
        CUDA_VISIBLE_DEVICES='',
    )
    assert done.returncode == 0, done.stderr
    assert 'Saving checkpoint at 1 epochs' in done.stdout + done.stderr
    assert not changes_in(done.stdout)


def build(folder: Path, **environment: str) -> None:
    """Write a source distribution of the working tree, and the wheel that is built from it, to a folder."""
    source = folder / 'source'
    subprocess.run(['git', 'clone', '-q', str(ROOT), str(source)], check=True)
    for changed in subprocess.run(
        ['git', 'ls-files', '-mo', '--exclude-standard'], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout.split():
        (source / changed).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / changed).is_file():
            (source / changed).write_bytes((ROOT / changed).read_bytes())
        else:
            (source / changed).unlink(missing_ok=True)
    command = [sys.executable, '-m', 'build', '--no-isolation', '--outdir', folder, source]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})


@pytest.fixture(scope='module')
def distributions(tmp_path_factory):
    """A folder with a source distribution and the wheel, which takes most of a minute to compile."""
    folder = tmp_path_factory.mktemp('distributions')
    build(folder)
    return folder


@pytest.fixture(scope='module')
def pure_distributions(tmp_path_factory):
    """The same without the library: all other files are those of the wheel with it."""
    folder = tmp_path_factory.mktemp('pure')
    build(folder, MMATTN_PURE='1')
    return folder


@pytest.fixture(scope='module')
def compiled_wheel(distributions):
    (path,) = distributions.glob('*.whl')
    return zipfile.ZipFile(path)


@pytest.fixture(scope='module')
def wheel(pure_distributions):
    (path,) = pure_distributions.glob('*.whl')
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith('METADATA'))
    return email.message_from_bytes(wheel.read(name))


def test_wheel_changes_no_torch(wheel):
    """Installing mmattn cannot change anybody's torch or OpenMMLab packages: torch needs filelock itself,
    and timm takes any torch."""
    required = [each for each in metadata(wheel).get_all('Requires-Dist') if 'extra' not in each]
    assert required == ['filelock', 'safetensors', 'timm', 'tqdm'] and 'filelock' in importlib.metadata.requires(
        'torch'
    )
    assert {'torch', 'torchvision'} <= set(importlib.metadata.requires('timm'))


def test_extras_are_the_tested_versions(wheel):
    """Extras start at the versions that these tests run with, and bring one family of OpenMMLab's packages only."""
    pinned = (ROOT / 'requirements' / 'onedl.txt').read_text().splitlines()
    required = [Requirement(each) for each in metadata(wheel).get_all('Requires-Dist') if 'extra' in each]
    floors = {f'{each.name}{each.specifier}'.replace('~=', '==') for each in required if 'mmattn' not in each.name}
    assert floors == {line for line in pinned if line.startswith('onedl-')}
    # MMCV comes without its operators, which MMDetection and heads of MMSegmentation need.
    ops = {str(each.marker) for each in required if each.name.replace('_', '-') == 'mmattn-mmcv-ops'}
    assert ops == {f'extra == "{extra}"' for extra in ('det', 'seg')}


@pytest.mark.slow
def test_one_wheel_for_all_pythons(compiled_wheel):
    """The wheel with the library is for a platform and every Python, that without it for all platforms."""
    assert re.fullmatch(r'mmattn-.*-cp310-abi3-(?!any).*\.whl', Path(compiled_wheel.filename).name)
    (facts,) = (name for name in compiled_wheel.namelist() if name.endswith('/WHEEL'))
    assert 'Root-Is-Purelib: false' in compiled_wheel.read(facts).decode()


@pytest.mark.parametrize(
    'platform, pure, compiled, threads',
    [('linux', '', True, True), ('darwin', '', True, False), ('win32', '', False, False), ('linux', '1', False, False)],
)
def test_what_is_compiled_where(monkeypatch, platform, pure, compiled, threads):
    """Apple's clang knows no OpenMP, MSVC no vectors, and MMATTN_PURE=1 leaves the library out."""
    asked = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'platform', platform)
    monkeypatch.setenv('MMATTN_PURE', pure)
    monkeypatch.setattr(setuptools, 'setup', lambda **arguments: asked.update(arguments))
    runpy.run_path('setup.py')
    assert bool(asked['ext_modules']) == bool(asked['options']) == compiled
    if compiled:
        (library,) = asked['ext_modules']
        assert ('-fopenmp' in library.extra_compile_args) == ('-fopenmp' in library.extra_link_args) == threads


def needed(requirements: Iterable[str], extras: Iterable[str] = (), seen: dict | None = None) -> set[Path]:
    """The installed files and folders of what requirements name, and of what that requires itself."""
    seen = {} if seen is None else seen
    for requirement in map(Requirement, requirements):
        wanted = [{'extra': extra} for extra in ('', *extras)]
        if requirement.marker and not any(map(requirement.marker.evaluate, wanted)):
            continue
        key = requirement.name, *sorted(requirement.extras)
        if key not in seen:
            distribution = importlib.metadata.distribution(requirement.name)
            tops = {file.parts[0] for file in distribution.files} - {'..', '__pycache__'}
            seen[key] = {Path(distribution.locate_file(top)) for top in tops}
            needed(distribution.requires or (), requirement.extras, seen)
    return set().union(*seen.values())


@pytest.mark.slow
@pytest.mark.parametrize('pure', [False, True], ids=['platform', 'pure'])
def test_clean_environment(request, tmp_path, pure):
    """Beside what it and MMEngine require, and nothing else, each wheel installs, and every backbone runs: without
    MMCV and OpenCV, and without the library if the wheel has none."""
    distributions = request.getfixturevalue('pure_distributions' if pure else 'distributions')
    (path,) = distributions.glob('*.whl')
    assert path.name.endswith('-py3-none-any.whl') == pure
    required = [each for each in metadata(zipfile.ZipFile(path)).get_all('Requires-Dist') if 'extra' not in each]
    engine = importlib.metadata.packages_distributions()['mmengine'][0]
    extras = '[mmengine]' if engine == 'onedl-mmengine' else ''
    venv.create(tmp_path / 'venv')
    python = tmp_path / 'venv' / 'bin' / 'python'
    (site,) = tmp_path.glob('venv/lib/*/site-packages')
    for installed in needed([*required, engine]):
        (site / installed.name).symlink_to(installed)
    install = [sys.executable, '-m', 'pip', '--python', python, 'install', '--no-index', f'{path}{extras}']
    check = [python, ROOT / 'tools' / 'dev' / 'check_install.py', *([] if pure else ['--library'])]
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    for command in (install, check):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout and f'{"without" if pure else "with"} C++ operators' in done.stdout


@pytest.mark.slow
def test_description_is_shown(distributions):
    """A package index can show the README."""
    files = [path for path in distributions.iterdir() if path.is_file()]
    done = subprocess.run([sys.executable, '-m', 'twine', 'check', '--strict', *files], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count('PASSED') == 2, done.stdout


def test_wheel_carries_mim(wheel):
    """Configs, tools and model index stand where OpenMMLab's mim looks for them, every config and tool of a user, and
    none for work on mmattn. Type checkers find the annotations, and a user the licence."""
    names = set(wheel.namelist())
    for folder in ('configs', 'tools'):
        for file in (ROOT / folder).rglob('*'):
            if file.suffix in ('.py', '.sh', '.yml', '.md'):
                is_there = f'mmattn/.mim/{file.relative_to(ROOT)}' in names
                assert is_there == ('dev' not in file.relative_to(ROOT).parts), file
    assert not [name for name in names if 'toy' in name]
    assert 'mmattn/.mim/model-index.yml' in names and 'mmattn/ops/elsa/cpp.py' in names
    assert not [name for name in names if name.endswith(('.cpp', '.h'))]
    assert 'mmattn/py.typed' in names and any(name.endswith('LICENSE') for name in names)


@pytest.mark.parametrize('tag, fits', [(f'v{__version__}', True), ('v9.9.9', False)])
def test_tags_are_versions(tag, fits):
    """Wheels are made for a tag only if it names their version."""
    done = subprocess.run([ROOT / '.ci' / 'check_tag', tag], capture_output=True, text=True)
    assert (done.returncode == 0) == fits, done.stderr


def test_model_index_is_read_by_mim():
    """Lists in Metadata have no numbers: mim joins them as text, and would show no model at all."""
    (pattern,) = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    for file in ROOT.glob(pattern):
        index = yaml.safe_load(file.read_text())
        for entry in index['Collections'] + index['Models']:
            for value in entry.get('Metadata', {}).values():
                assert not isinstance(value, list) or all(isinstance(item, str) for item in value), entry['Name']
