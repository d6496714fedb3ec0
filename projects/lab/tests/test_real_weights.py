"""projects/lab/tools/real_weights.py: which runs it publishes, and with which config."""

import json
import math

import torch
from mmengine.config import Config

from mmattn.backbones import GSAResNet
from tests.tools.in_process import run_tool

BACKBONE = dict(
    depth=dict(depths=(1, 1, 1, 1), stem_channels=8, base_channels=8, expansion=4), gsa_stages=(), img_size=64
)


def write(work_dir, run, top1, steps=(4,), **changes):
    """A run of projects/lab/tools/compare.py that was resumed: its result, its config, and its checkpoints."""
    folder = work_dir / 'tiny-imagenet' / run
    folder.mkdir(parents=True)
    metrics = {'accuracy/top1': top1} if math.isnan(top1) else {'accuracy/top1': top1, 'accuracy/top5': 50.0}
    (folder / 'result.json').write_text(json.dumps(dict(rate=0.001, metrics=metrics, seconds=600)))
    settings = dict(work_dir=str(folder), load_from=f'{folder}/iter_2.pth', resume=True, default_scope='mmpretrain')
    model = dict(type='ImageClassifier', backbone=dict(BACKBONE, type='GSAResNet', **changes))
    Config(dict(model=model, **settings)).dump(folder / 'tiny-imagenet.py')
    backbone = GSAResNet(**BACKBONE)
    for step in steps:
        weights = {f'backbone.{name}': torch.full_like(value, step) for name, value in backbone.state_dict().items()}
        state = dict(state_dict=weights, meta=dict(mmattn=dict(backbone=backbone.settings_note)))
        torch.save(state, folder / f'iter_{step}.pth')


def test_weights(tmp_path):
    """The best run of a model is published, from its last checkpoint, with a config that trains anew. A model that
    diverged or does not fit its config is named."""
    work_dir, out = tmp_path / 'classifiers', tmp_path / 'weights'
    write(work_dir, 'good/rate0.001_seed0', 30.0, steps=(9, 10))
    write(work_dir, 'good/rate0.002_seed0', 20.0)
    write(work_dir, 'good/rate0.004_seed0', math.nan, steps=())
    write(work_dir, 'diverged/rate0.001_seed0', math.nan, steps=())
    write(work_dir, 'changed/rate0.001_seed0', 30.0, gsa_stages=(3,), num_heads=2)
    done = run_tool('real_weights', work_dir, '--out', out)
    assert done.returncode == 0 and 'diverged is left out' in done.stdout and 'changed is left out' in done.stdout
    assert [folder.name for folder in out.iterdir()] == ['good']
    assert '| 30.0 | 50.0 | 0.001 | 10 |' in (out / 'good' / 'README.md').read_text()
    assert not {'work_dir', 'load_from', 'resume'} & set(Config.fromfile(out / 'good' / 'config.py'))
    backbone = GSAResNet(**BACKBONE)
    backbone.load_pretrained(out / 'good' / 'model.safetensors')
    assert backbone.layer1[0].conv1.weight.unique().tolist() == [10]


def test_nothing_is_finished(tmp_path):
    done = run_tool('real_weights', tmp_path, '--out', tmp_path / 'weights')
    assert done.returncode == 1 and 'make real trains them' in done.stderr
