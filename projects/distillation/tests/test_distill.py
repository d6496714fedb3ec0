"""Distillation with tools/train.py as a user calls it. test_dist_and_resume.py interrupts such trainings."""

import json
import re

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmguard.runs.configs import load_config
from tests import ROOT
from tests.tools.in_process import run_tool

#: two sizes, two epochs of two steps
CONFIG = """
_base_ = '{root}/projects/distillation/configs/toy/distill.py'
checkpoint = '{folder}/teacher.pth'
model = dict(teacher=dict(model=dict(init_cfg=dict(checkpoint=checkpoint))))
data = dict(data_root='{folder}/photos', held_out=0.3)
train_dataloader = dict(
    batch_size=4,
    batch_sampler=dict(sizes=[dict(size=(32, 32), share=0.5), dict(size=(32, 64), share=0.5)]),
    dataset=data)
val_dataloader = dict(batch_size=2, dataset=data)
train_cfg = dict(max_epochs=2, val_interval=1)
default_hooks = dict(logger=dict(interval=1))
"""


@pytest.fixture
def config(tmp_path):
    """A config of a short training, its images in nested folders, one of which is broken, and the teacher's weights."""
    rng = np.random.default_rng(0)
    for index in range(12):
        folder = tmp_path / 'photos' / f'day {index % 3}'
        folder.mkdir(parents=True, exist_ok=True)
        colours = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'{index}.{"JPG" if index % 2 else "png"}'), cv2.resize(colours, (60 + index, 50)))
    (tmp_path / 'photos' / 'broken.jpg').write_bytes(b'no image')
    teacher = MODELS.build(Config.fromfile(ROOT / 'projects/lab/configs/toy' / 'teacher_in1k.py').teacher)
    torch.save(
        {'state_dict': {f'backbone.{name}': value for name, value in teacher.state_dict().items()}},
        tmp_path / 'teacher.pth',
    )
    (tmp_path / 'short.py').write_text(CONFIG.format(root=ROOT, folder=tmp_path))
    return tmp_path / 'short.py'


@pytest.fixture
def train(tmp_path):
    """Train in this process. Returns the sentence that ends it, None if all went well."""

    def train(config, work='work'):
        sentence = run_tool('train', config, '--work-dir', tmp_path / work).sentence
        assert sentence is None or not list((tmp_path / work).rglob('*.pth'))
        return sentence

    return train


def test_training(train, config, tmp_path):
    """A training leaves the states, the backbone after each epoch, losses and similarities in the log, and pictures of
    the features for a person and for TensorBoard. It names the broken image. A backbone takes its file strictly."""
    assert train(config) is None
    work = tmp_path / 'work'
    names = {f'{kind}epoch_{epoch}.pth' for kind in ('', 'backbone_') for epoch in (1, 2)}
    assert {path.name for path in work.glob('*.pth')} == names
    (scalars,) = work.glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    parts = ['stage1', 'stage2', 'stage3', 'global']
    losses = [[line[f'loss_{part}'] for part in parts] for line in lines if 'loss' in line]
    similarities = [[line[f'similarity/{part}'] for part in (*parts, 'mean')] for line in lines if 'loss' not in line]
    assert len(losses) >= 4 and len(similarities) == 2 and np.isfinite(losses).all()
    assert (np.abs(similarities) <= 1).all()
    assert len(list(work.glob('*/vis_data/vis_image/features_*.png'))) >= 2
    assert len(list(work.glob('*/vis_data/events.out.tfevents.*'))) == 1
    (log,) = work.glob('*/*.log')
    assert 'broken.jpg' in log.read_text()

    cfg = Config.fromfile(config)
    file = work / 'backbone_epoch_2.pth'
    backbone = MODELS.build(dict(cfg.model.backbone, init_cfg=dict(type='Pretrained', checkpoint=str(file))))
    backbone.init_weights()
    state = torch.load(work / 'epoch_2.pth', weights_only=False)['state_dict']
    assert not [name for name in state if name.startswith('teacher')]
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, state[f'backbone.{name}']), name


@pytest.mark.parametrize(
    'teacher, sentence',
    [("_delete_=True, model='vit_tiny_patch16_224'", 'vit_tiny_patch16_224 cannot be downloaded .* set checkpoint')],
)
def test_missing_teacher(train, config, monkeypatch, teacher, sentence):
    """Without the weights of the teacher, the training ends in a sentence that says how to get them, and writes no
    checkpoint."""
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    config.write_text(config.read_text() + f'model = dict(teacher=dict({teacher}))\n')
    assert re.search(sentence, train(config))


PAGE = (ROOT / 'projects' / 'distillation' / 'docs' / 'distillation.md').read_text()
EXAMPLES = dict(
    zip(
        ('any student', 'own teacher', 'two teachers', 'cache'),
        re.findall('```python\n(.*?)```', PAGE, re.DOTALL),
        strict=True,
    )
)


@pytest.fixture
def load(tmp_path):
    """Read an example of docs/distillation.md as the tools do."""

    def load(name):
        path = tmp_path / 'example.py'
        path.write_text(EXAMPLES[name].replace("'../projects/", f"'{ROOT}/projects/"))
        return load_config(path)

    return load


def test_examples(load):
    """The examples pass the checks of configs, and change the student, the teacher or the views as the page says."""
    cfg = load('any student')
    with torch.device('meta'):
        maps = MODELS.build(cfg.model.backbone)(torch.empty(1, 3, 64, 64))
    assert [64 // x.shape[2] for x in maps] == [8, 16, 32] and 'dinov2' in cfg.model.teacher.model
    assert load('own teacher').model.teacher.model.type == 'mmattn.ELSASwin'
    assert [teacher.get('weight', 1) for teacher in load('two teachers').model.teacher] == [1, 0.5]
    loader = load('cache').train_dataloader
    assert loader.batch_sampler is None and loader.dataset.pipeline[1].type == 'mmattn_distillation.FixedViews'


@pytest.mark.slow
def test_cache(train, config, load, tmp_path):
    """With the views of the page, a training keeps the features of at most four views of an image. A second training
    reads them and learns the same."""
    views = load('cache').train_dataloader.dataset.pipeline[1].views
    cached = tmp_path / 'cached.py'
    cached.write_text(f"""
_base_ = './short.py'
model = dict(teacher=dict(cache='{tmp_path}/features'))
load, crop, flip, colours, pack = _base_.train_pipeline
pipeline = [load, dict(type='FixedViews', transforms=[crop, flip], views={views}), colours, pack]
train_dataloader = dict(batch_sampler=None, dataset=dict(pipeline=pipeline))
""")
    losses, made = [], []
    for work in ('work', 'again'):
        assert train(cached, work) is None
        (scalars,) = (tmp_path / work).glob('*/vis_data/scalars.json')
        lines = [json.loads(line) for line in scalars.read_text().splitlines()]
        losses.append([line['loss'] for line in lines if 'loss' in line])
        made.append({file: file.stat().st_mtime for file in (tmp_path / 'features').rglob('*.features')})
    assert 0 < len(made[0]) <= 12 * views and made[0] == made[1]
    assert len(losses[0]) > 2 and losses[0] == losses[1]
