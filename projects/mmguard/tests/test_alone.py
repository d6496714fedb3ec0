"""mmguard works without mmattn, with models of OpenMMLab's packages."""

import subprocess
import sys

import pytest

from tests import ROOT

CONFIG = """
_base_ = 'mmpretrain::resnet/resnet18_8xb16_cifar10.py'
custom_imports = None
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(_delete_=True, type='CustomDataset', data_prefix='images', pipeline=pipeline),
)
val_dataloader = val_cfg = val_evaluator = test_dataloader = test_cfg = test_evaluator = None
data_preprocessor = dict(num_classes=2)
model = dict(head=dict(num_classes=2))
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=2)
param_scheduler = None
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1))
"""
TRAIN = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition('.')[0] == 'mmattn':
            raise ModuleNotFoundError(f'No module named {name}')

sys.meta_path.insert(0, Absent)
from mmguard.runs.running import run_tool
from mmguard.tools.train import main
sys.argv = ['train.py', 'config.py', '--work-dir', 'out']
run_tool(main)
"""


@pytest.mark.slow
def test_training_without_mmattn(tmp_path):
    """A ResNet of MMPretrain is trained, and its checkpoints are written by the hook of mmguard."""
    from PIL import Image

    for name in 'ab':
        (tmp_path / 'images' / name).mkdir(parents=True)
        Image.new('RGB', (32, 32)).save(tmp_path / 'images' / name / '0.png')
    (tmp_path / 'config.py').write_text(CONFIG)
    paths = f'{ROOT / "projects" / "mmguard"}'
    done = subprocess.run(
        [sys.executable, '-c', f'import sys; sys.path.insert(0, {paths!r})\n{TRAIN}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'out' / 'iter_2.pth').is_file()
    assert 'mmguard.AtomicCheckpointHook' in (tmp_path / 'out' / 'config.py').read_text()
