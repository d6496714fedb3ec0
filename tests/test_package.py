import subprocess
import sys
import zipfile

import pytest

from mmattn import stack
from tests import ROOT


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd='/')


def test_backbones_need_mmengine_only():
    """With mmcv, mmdet, mmseg and timm absent, mmattn imports and its backbones run."""
    done = run_python("""
import sys
for absent in ("mmcv", "mmdet", "mmseg", "mmpretrain", "timm"):
    sys.modules[absent] = None
import torch, mmattn
from mmengine.registry import MODELS
for name in mmattn.backbones.__all__:
    backbone = MODELS.build(dict(type=name))
    backbone.init_weights()
    print(len(backbone(torch.zeros(1, 3, 64, 64))))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_missing_mmengine_is_told():
    done = run_python('import sys; sys.modules["mmengine"] = None; import mmattn')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        'ImportError: mmattn needs mmengine 0.10.0 or newer, which is not installed: pip install mmengine or '
        'onedl-mmengine, whichever family the environment has.'
    )


@pytest.mark.parametrize('installed, fits', [('3.2.0', False), ('3.3.0', True), ('3.10.1', True), ('4.0.0rc1', True)])
def test_versions_are_compared_as_numbers(monkeypatch, installed, fits):
    import mmdet

    monkeypatch.setattr(mmdet, '__version__', installed)
    if fits:
        stack.require('mmdet', 'this')
    else:
        with pytest.raises(ImportError, match='needs mmdet 3.3.0 or newer, but 3.2.0 is installed'):
            stack.require('mmdet', 'this')


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """A wheel built from a copy of the project."""
    folder = tmp_path_factory.mktemp('wheel')
    subprocess.run(['git', 'clone', '-q', str(ROOT), str(folder / 'source')], check=True)
    for changed in subprocess.run(
        ['git', 'ls-files', '-mo', '--exclude-standard'], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout.split():
        (folder / 'source' / changed).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / changed).exists():
            (folder / 'source' / changed).write_bytes((ROOT / changed).read_bytes())
    subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            'wheel',
            '-q',
            '--no-deps',
            '--no-build-isolation',
            '-w',
            str(folder),
            str(folder / 'source'),
        ],
        check=True,
    )
    (path,) = folder.glob('*.whl')
    return zipfile.ZipFile(path)


def test_wheel_requires_nothing(wheel):
    """Installing mmattn cannot change anybody's torch or OpenMMLab packages."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith('METADATA'))
    assert 'Requires-Dist' not in wheel.read(metadata).decode()


def test_wheel_carries_mim(wheel):
    """Configs, tools and model index stand where OpenMMLab's mim looks for them, every config and tool of them."""
    names = set(wheel.namelist())
    for folder in ('configs', 'tools'):
        for file in (ROOT / folder).rglob('*'):
            if file.suffix in ('.py', '.sh', '.yml', '.md'):
                assert f'mmattn/.mim/{file.relative_to(ROOT)}' in names
    assert 'mmattn/.mim/model-index.yml' in names and 'mmattn/ops/elsa.py' in names


def test_wheel_carries_licence(wheel):
    """Whoever gets the package gets the licence, too."""
    assert any(name.endswith('LICENSE') for name in wheel.namelist())
