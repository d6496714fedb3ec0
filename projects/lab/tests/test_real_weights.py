"""projects/lab/tools/real_weights.py: which runs it publishes, and with which config."""

import json
import math

import safetensors.torch
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmattn.backbones import GSAResNet
from mmguard.runs.checkpoints import backbone_settings
from tests.tools.in_process import run_tool

BACKBONE = dict(
    depth=dict(depths=(1, 1, 1, 1), stem_channels=8, base_channels=8, expansion=4), gsa_stages=(), img_size=64
)

VALIDATION = dict(val_dataloader=dict(batch_size=1), val_evaluator=dict(type='Metric'), val_cfg=dict(type='ValLoop'))


def write(work_dir, run, top1, steps=(4,), **changes):
    """A run of projects/lab/tools/compare.py that was resumed: its result, its config, and its checkpoints."""
    folder = work_dir / 'tiny-imagenet' / run
    folder.mkdir(parents=True)
    metrics = {'accuracy/top1': top1} if math.isnan(top1) else {'accuracy/top1': top1, 'accuracy/top5': 50.0}
    (folder / 'result.json').write_text(json.dumps(dict(rate=0.001, metrics=metrics, seconds=600)))
    settings = dict(work_dir=str(folder), load_from=f'{folder}/iter_2.pth', resume=True, default_scope='mmpretrain')
    settings.update(VALIDATION)
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
    assert '| 30.0 | 50.0 | 3 | 0.001 | 10 |' in (out / 'good' / 'README.md').read_text()
    assert not {'work_dir', 'load_from', 'resume'} & set(Config.fromfile(out / 'good' / 'config.py'))
    backbone = GSAResNet(**BACKBONE)
    backbone.load_pretrained(out / 'good' / 'model.safetensors')
    assert backbone.layer1[0].conv1.weight.unique().tolist() == [10]


def test_without_kept_maps(tmp_path):
    """A backbone whose maps were kept is published as itself, frozen, with the weights and settings of the run. The
    config has the test of the run, which OpenMMLab's inferencers ask for."""
    arch = dict(embed_dim=16, depth=2, num_heads=2, version=2, registers=0, swiglu=0)
    kept = dict(
        type='KeptMaps',
        backbone=dict(type='mmattn.DINOViT', arch=arch, out_indices=(0,)),
        folder=str(tmp_path / 'maps'),
    )
    sizes = dict(in_channels=16, channels=16, in_index=0)
    head = dict(type='FCNHead', num_convs=0, num_classes=11, concat_input=False, norm_cfg=None, **sizes)
    cfg = dict(VALIDATION, default_scope='mmseg', custom_imports=dict(imports=['mmattn_lab']))
    cfg['model'] = dict(type='EncoderDecoder', backbone=kept, decode_head=head, test_cfg=dict(mode='whole'))
    folder = tmp_path / 'work' / 'camvid' / 'linear' / 'rate0.01_seed0'
    folder.mkdir(parents=True)
    Config(cfg).dump(folder / 'camvid.py')
    (folder / 'result.json').write_text(json.dumps(dict(rate=0.01, metrics=dict(mIoU=50.0), seconds=60)))
    with DefaultScope.overwrite_default_scope('mmseg'):
        trained = MODELS.build(Config(cfg).model)
        note = dict(mmattn=backbone_settings(trained))
        torch.save(dict(state_dict=trained.state_dict(), meta=note), folder / 'iter_500.pth')
        done = run_tool('real_weights', tmp_path / 'work', '--config', 'camvid', '--license', 'mit', '--out', tmp_path)
        assert done.returncode == 0, done.stderr
        out = tmp_path / 'linear'
        card, published = (out / 'README.md').read_text(), Config.fromfile(out / 'config.py')
        assert 'license: mit' in card and '| 50.0 | 1 | 0.01 | 1 |' in card and 'custom_imports' not in published
        assert published.test_dataloader == published.val_dataloader and published.test_cfg.type == 'TestLoop'
        model = MODELS.build(published.model)
    weights = out / 'model.safetensors'
    model.load_state_dict({name: x.float() for name, x in safetensors.torch.load_file(weights).items()})
    model.backbone.load_pretrained(weights)  # compares the settings
    assert not any(p.requires_grad for p in model.backbone.parameters())
    images = torch.randn(1, 3, 28, 28)
    assert torch.allclose(model.eval()(images), trained.eval()(images), atol=1e-2)


def test_license_of_a_start(tmp_path):
    """A training that started from other weights is not published under a license that nobody chose."""
    write(tmp_path, 'good/rate0.001_seed0', 30.0, init_cfg=dict(type='Pretrained', checkpoint='start.pth'))
    done = run_tool('real_weights', tmp_path, '--out', tmp_path / 'weights')
    assert done.returncode == 1 and 'give the license of the weights' in done.stderr and 'start.pth' in done.stderr
    assert not (tmp_path / 'weights').exists()


def test_nothing_is_finished(tmp_path):
    done = run_tool('real_weights', tmp_path, '--out', tmp_path / 'weights')
    assert done.returncode == 1 and 'no finished training of tiny-imagenet.py' in done.stderr
