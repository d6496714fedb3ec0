"""tools/doctor.py: a healthy training is found healthy, and a sentence names each of the usual mistakes."""

import functools
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.analysis import doctor
from mmattn.backbones import ELSASwin
from mmattn.checks.pixels import pixels_of
from mmattn.runs.rows import read_row
from tests import ROOT
from tests.tools.in_process import run_tool

BASE = ROOT / 'configs' / 'toy' / 'compare' / 'retinanet_fpn_coco.py'
CLASSIFIER = f"_base_ = '{ROOT}/configs/toy/elsa-swin-toy_in1k.py'\n"
TEST_ONLY = CLASSIFIER + 'train_dataloader = train_cfg = optim_wrapper = param_scheduler = None'
#: mistake -> what a config has, and what the doctor says
MISTAKES = {
    'channels': (
        'model = dict(neck=[dict(_base_.model.neck[0], in_channels=[192, 96, 48, 24])])',
        r'in_channels.*\[192, 96, 48, 24\].*\[24, 48, 96, 192\]',
    ),
    'classes of the head': ('model = dict(bbox_head=dict(num_classes=4))', 'num_classes'),
    'names of classes': (
        "train_dataloader = dict(dataset=dict(metainfo=dict(classes=('kites', 'donut', 'book', 'fan', 'ball'))))",
        'kites',
    ),
    'weights of another model': (
        "model = dict(backbone=dict(init_cfg=dict(checkpoint='FOLDER/other.pth')))",
        'other.pth: .*missing',
    ),
    'weights of another model, loaded by MMEngine': (
        "model = dict(backbone=dict(_delete_=True, type='ResNet', depth=18, init_cfg=dict(type='Pretrained', "
        "checkpoint='FOLDER/other.pth')), neck=[dict(_base_.model.neck[0], in_channels=[64, 128, 256, 512])])",
        r'only 0 of the \d+ tensors of the backbone are from .*other.pth',
    ),
    'imports': ('custom_imports = dict(_delete_=True, imports=[])', 'custom_imports does not name mmattn'),
    'BGR': ('model = dict(data_preprocessor=dict(bgr_to_rgb=False))', 'bgr_to_rgb is False, but mean and std are in'),
    'no normalisation': (
        'model = dict(data_preprocessor=dict(mean=[0, 0, 0], std=[1, 1, 1]))',
        'the images are not normalised: .* mean 1',
    ),
    'mean of pixels from 0 to 1': (
        'model = dict(data_preprocessor=dict(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]))',
        'the images are not normalised: .* which are for pixels from 0 to 255',
    ),
    'all frozen': (
        "optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'': dict(lr_mult=0.0)}))",
        'no parameter is trained',
    ),
    'frozen without weights': (
        'model = dict(backbone=dict(frozen_stages=4, init_cfg=None))',
        'the backbone is not trained, and starts from random weights',
    ),
    'rate of another optimizer': ('optim_wrapper = dict(optimizer=dict(lr=0.1))', 'the rate is too high'),
    'rate too low': ('optim_wrapper = dict(optimizer=dict(lr=1e-7))', 'the rate is too low'),
    'no weights': ('model = dict(backbone=dict(init_cfg=None))', 'the backbone starts from random weights'),
}


@pytest.fixture(scope='module')
def examined(tmp_path_factory):
    """A function: what the doctor says of the toy detector with weights and a change."""
    folder = tmp_path_factory.mktemp('doctor')
    assert run_tool('dev/make_toy_data', folder / 'toy', '--train', 12, '--val', 2).returncode == 0
    backbone = MODELS.build(read_row(BASE, 'swin').model.backbone)
    torch.save(backbone.state_dict(), folder / 'swin.pth')
    torch.save({'conv1.weight': torch.ones(8, 3, 7, 7)}, folder / 'other.pth')
    start = f"init_cfg=dict(_delete_=True, type='Pretrained', checkpoint='{folder}/swin.pth')"
    (folder / 'healthy.py').write_text(f"_base_ = '{BASE}'\nmodel = dict(backbone=dict({start}))\n")

    def examine(change: str, *options: object):
        (folder / 'config.py').write_text("_base_ = 'healthy.py'\n" + change.replace('FOLDER', str(folder)))
        environment = dict(COCO_ROOT=f'{folder}/toy/coco/', CUDA_VISIBLE_DEVICES='')
        return run_tool('doctor', folder / 'config.py', *options, **environment)

    return examine


def test_healthy(examined):
    """A batch is learned by heart, and every part of the model is trained."""
    done = examined('', '--steps', 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'No mistake was found' in done.stdout and 'swin.pth' in done.stdout
    counts = re.search(r'(\d+) of its (\d+) tensors are in the model; (\d+) of (\d+) of the backbone', done.stdout)
    assert len(set(counts.groups())) == 1 and int(counts[1]) > 50
    assert all(part in done.stdout for part in ('backbone.layers.3', 'neck', 'bbox_head'))


@pytest.mark.slow
@pytest.mark.parametrize('mistake', MISTAKES)
def test_mistakes_are_named(examined, mistake):
    """The first sentence names the planted mistake, and the exit status is 1."""
    change, sentence = MISTAKES[mistake]
    done = examined(change)
    assert done.returncode == 1
    said = done.stderr + done.stdout.partition('Likely cause: ')[2].partition('\n')[0]
    assert re.search(sentence, said), done.stdout + done.stderr


class Frozen(nn.Module):
    """A model without a gradient."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, inputs, mode):
        return self.backbone(inputs).sum()

    def parse_losses(self, loss):
        return loss, {}


def test_no_parameter_has_a_gradient():
    """There is no backward pass, and a sentence instead of its error."""
    model, found = Frozen(), doctor.Findings()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1.0))
    doctor.learn(SimpleNamespace(model=model, optim_wrapper=wrapper), dict(inputs=torch.ones(1, 2)), 5, found)
    assert len(found.losses) == 1 and found.stages['backbone.weight'].frozen == 4
    assert next(doctor.nothing_trained(found)).startswith('no parameter is trained')


class Square(Frozen):
    """A model of two parts that learns."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, inputs, mode):
        return self.head(self.backbone(inputs)).square().sum()


def learned(wrap):
    """What is found in 20 steps with an optimizer that ``wrap`` makes."""
    torch.manual_seed(0)
    model, found = Square(), doctor.Findings()
    runner = SimpleNamespace(model=model, optim_wrapper=wrap(torch.optim.SGD(model.parameters(), lr=0.01)))
    doctor.learn(runner, dict(inputs=torch.full((1, 2), 3.0)), 20, found)
    return found


def test_accumulated_gradients():
    """One batch is learned as without accumulation, which would need more batches for a step."""
    plain, accumulated = (learned(functools.partial(OptimWrapper, accumulative_counts=count)) for count in (1, 9))
    assert plain.losses[-1] < 0.2 * plain.losses[0] and accumulated == plain


@pytest.mark.skipif(not hasattr(torch.amp, 'GradScaler'), reason='that of the CPU came with torch 2.3')
def test_mixed_precision(monkeypatch):
    """Gradients are those of the loss itself, and a first step that is left out is not taken for a frozen model."""
    module = 'mmengine.optim.optimizer.amp_optimizer_wrapper'
    monkeypatch.setattr(f'{module}.is_cuda_available', lambda: True)
    monkeypatch.setattr(f'{module}.GradScaler', functools.partial(torch.amp.GradScaler, 'cpu'))
    plain = learned(OptimWrapper).stages
    for scale in (dict(init_scale=2.0**16), dict(init_scale=2.0**127, backoff_factor=2.0**-100)):
        settings = dict(dtype='bfloat16', loss_scale=scale)
        found = learned(lambda optimizer, settings=settings: AmpOptimWrapper(optimizer=optimizer, **settings))
        for part, stage in found.stages.items():
            assert stage.gradient == pytest.approx(plain[part].gradient, rel=0.05)
            assert stage.change == pytest.approx(plain[part].change, rel=0.05)


@pytest.mark.parametrize(
    'config, option, sentence',
    [
        (CLASSIFIER, 'train_dataloader.dataset.data_root=nowhere', 'there is no image folder nowhere/train'),
        (TEST_ONLY, 'work_dir=work', 'the doctor needs a config with model.backbone and optim_wrapper'),
    ],
    ids=['no images', 'for tests only'],
)
def test_config_that_cannot_train(tmp_path, config, option, sentence):
    """It ends in a sentence, before anything is built."""
    (tmp_path / 'a.py').write_text(config)
    done = run_tool('doctor', tmp_path / 'a.py', '--cfg-options', option)
    assert done.returncode == 1 and sentence in done.sentence


@pytest.mark.parametrize(
    'normalize, settings, sentence',
    [
        (dict(mean=doctor.MEAN, std=[58.0] * 3), {}, None),
        (dict(mean=doctor.MEAN, std=[58.0] * 3, to_rgb=False), {}, 'pipeline[0].to_rgb is False, but mean and std are'),
        (
            None,
            dict(mean=doctor.MEAN[::-1], std=[58.0] * 3, bgr_to_rgb=True),
            'data_preprocessor.bgr_to_rgb is True, but',
        ),
        (dict(mean=doctor.MEAN, std=[58.0] * 3), dict(mean=doctor.MEAN, std=[58.0] * 3), 'are normalised twice, see'),
        (dict(mean=[9.0, 8, 7, 6], std=[1.0] * 4, to_rgb=False), {}, None),
    ],
    ids=['healthy', 'order of the pipeline', 'order of the preprocessor', 'both normalise', 'four bands'],
)
def test_order_of_channels(normalize, settings, sentence):
    """Wherever images are normalised: mean and std are in the order that the model gets."""
    pipeline = [dict(type='Normalize', **normalize)] if normalize else []
    cfg = Config(dict(train_dataloader=dict(dataset=dict(pipeline=pipeline))))
    with DefaultScope.overwrite_default_scope('mmseg'):
        preprocessor = MODELS.build(dict(type='SegDataPreProcessor', **settings))
    said = [*doctor.channel_order(pixels_of(cfg, preprocessor, 'train'))]
    assert sentence in said[0] if sentence else not said


def test_advice_for_other_channels():
    """Four bands do not get the three numbers of ImageNet."""
    (sentence,) = doctor.images_not_normalised([(500.0, 99.0)] * 4)
    assert '4 numbers each' in sentence and '123' not in sentence


def test_class_as_type():
    """A new-style config imports the class itself, and needs no custom_imports."""
    node = dict(type=ELSASwin)
    assert not [*doctor.missing_imports(ConfigDict(model=dict(backbone=node)))]
    assert [*doctor.missing_imports(ConfigDict(model=dict(backbone=dict(type='ELSASwin'))))]
