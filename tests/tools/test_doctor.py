"""tools/doctor.py: a healthy training is found healthy, and a sentence names each of the usual mistakes."""

import functools
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmpretrain.structures import DataSample
from torch import nn

from mmattn.backbones import ELSASwin
from mmguard import doctor
from mmguard.checks.pixels import pixels_of
from mmguard.runs.rows import read_row
from tests import ROOT
from tests.tools.in_process import run_tool

BASE = ROOT / 'projects/lab/configs/toy' / 'compare' / 'retinanet_fpn_coco.py'
CLASSIFIER = f"_base_ = '{ROOT}/projects/lab/configs/toy/elsa-swin-toy_in1k.py'\n"
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
    'imports': ("model = dict(backbone=dict(type='ELSASwin'))", "set type='mmattn.ELSASwin'"),
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
    'rate of another optimizer': ('optim_wrapper = dict(optimizer=dict(lr=0.1))', 'the rate is too high'),
    'rate too low': ('optim_wrapper = dict(optimizer=dict(lr=1e-7))', 'the rate is too low'),
    'rate of the head too low': (
        "optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'bbox_head': dict(lr_mult=1e-4)}))",
        'the rate is too low: the first step changes the norm of bbox_head by .*, and',
    ),
    'rate of the head too high': (
        "optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'bbox_head': dict(lr_mult=300.0)}))",
        'the rate is too high: the first step changes the norm of bbox_head by .*, and',
    ),
    'first stages frozen without weights': (
        'model = dict(backbone=dict(frozen_stages=2, init_cfg=None))',
        r'not trained: backbone.patch_embed, backbone.layers.0, backbone.layers.1, backbone.norm0, backbone.norm1;',
    ),
    'loss without weight': (
        'model = dict(bbox_head=dict(loss_bbox=dict(loss_weight=0.0)))',
        'less than 0.1 % of the loss is loss_bbox',
    ),
    'clipped gradients': (
        "optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.01), clip_grad=dict(max_norm=1e-5))",
        'clip_grad leaves 0.00.* % of the gradient',
    ),
    'weight decay': ('optim_wrapper = dict(optimizer=dict(weight_decay=200.0))', 'weight decay takes 20 % of'),
    'milestones of epochs, counted in steps': (
        "param_scheduler = [dict(type='MultiStepLR', by_epoch=False, milestones=[8, 11])]",
        'param_scheduler leaves 3.7 % of the rate',
    ),
    'no gradient': (
        'model = dict(bbox_head=dict(init_cfg=dict(type="Constant", layer="Conv2d", val=0.0)))',
        'no gradient reaches backbone',
    ),
    'batches of one image': (
        f"_base_ = '{ROOT}/projects/lab/configs/toy/elsa-swin-toy_upernet.py'\n"
        'train_dataloader = dict(batch_size=1, num_workers=0, persistent_workers=False)',
        'psp_modules.0.1.bn is a batch norm with one value per channel and image',
    ),
}
NO_WORKERS = 'train_dataloader = dict(num_workers=0, persistent_workers=False)\n'
#: what a config has -> what the doctor says beside that it has found no mistake
HEALTHY = {
    'random weights': ('model = dict(backbone=dict(init_cfg=None))', 'Remark: the backbone starts from random weights'),
    'frozen weights': ('model = dict(backbone=dict(frozen_stages=4))', 'swin.pth'),
    'a class without boxes': (
        "classes = dict(classes=('zebra', 'frisbee', 'kite', 'donut', 'book', 'scissors'))\n"
        'train_dataloader = val_dataloader = dict(dataset=dict(metainfo=classes))\n'
        'test_dataloader = val_dataloader\n'
        'model = dict(bbox_head=dict(num_classes=6))',
        'has no box of 1 of its 6 classes: zebra',
    ),
    'detector for a CPU': (
        f"_base_ = '{ROOT}/projects/lab/configs/toy/retinanet_shunted-toy_fpn.py'\n{NO_WORKERS}"
        'train_cfg = dict(max_epochs=100)',  # as many steps as the warm-up of the config is for
        'has no box of 75 of its 80 classes',
    ),
    'segmentor for a CPU': (
        f"_base_ = '{ROOT}/projects/lab/configs/toy/shunted-toy_fpn.py'\n{NO_WORKERS}",
        'labels: .*grass',
    ),
    'classifier for a CPU': (CLASSIFIER + NO_WORKERS, 'weights: random'),
}


@pytest.fixture(scope='module')
def examined(tmp_path_factory):
    """A function: what the doctor says of the toy detector with weights and a change."""
    folder = tmp_path_factory.mktemp('doctor')
    assert run_tool('make_toy_data', folder / 'toy', '--train', 12, '--val', 2).returncode == 0
    backbone = MODELS.build(read_row(BASE, 'swin').model.backbone)
    torch.save(backbone.state_dict(), folder / 'swin.pth')
    torch.save({'conv1.weight': torch.ones(8, 3, 7, 7)}, folder / 'other.pth')
    start = f"init_cfg=dict(_delete_=True, type='Pretrained', checkpoint='{folder}/swin.pth')"
    (folder / 'healthy.py').write_text(f"_base_ = '{BASE}'\nmodel = dict(backbone=dict({start}))\n")

    def examine(change: str, *options: object):
        change = change if change.startswith('_base_') else "_base_ = 'healthy.py'\n" + change
        (folder / 'config.py').write_text(change.replace('FOLDER', str(folder)))
        roots = dict(COCO='coco/', ADE20K='ADEChallengeData2016/', IMAGENET='imagenet')
        environment = {f'{name}_ROOT': f'{folder}/toy/{path}' for name, path in roots.items()}
        environment['CUDA_VISIBLE_DEVICES'] = ''
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
    done = examined(change, '--steps', 25)
    assert done.returncode == 1
    said = done.stderr + done.stdout.partition('Likely cause: ')[2].partition('\n')[0]
    assert re.search(sentence, said), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('config', HEALTHY)
def test_healthy_configs(examined, config):
    """What may be as the user wants it is said, and is no mistake: the exit status is 0."""
    change, sentence = HEALTHY[config]
    done = examined(change, '--steps', 25)
    assert done.returncode == 0 and 'No mistake was found' in done.stdout, done.stdout + done.stderr
    assert re.search(sentence, done.stdout + done.stderr), done.stdout + done.stderr


class Square(nn.Module):
    """A model of two parts that learns."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, inputs, mode):
        return self.head(self.backbone(inputs)).square().sum()

    def parse_losses(self, loss):
        return loss, {}


def test_a_part_with_rate_0():
    """It is counted as frozen, whatever its gradient. A part that starts from weights may be."""
    model, found = Square(), doctor.Findings()
    groups = [dict(params=model.backbone.parameters()), dict(params=model.head.parameters(), lr=0.0)]
    runner = SimpleNamespace(model=model, optim_wrapper=OptimWrapper(torch.optim.SGD(groups, lr=1e-3)))
    doctor.learn(runner, dict(inputs=torch.ones(1, 2)), 1, found)
    assert found.stages['head'].trained == 0 and found.stages['head'].frozen == 3
    assert 'not trained: head;' in next(doctor.nothing_trained(found))
    found.stages['head'].given = True
    assert not [*doctor.nothing_trained(found)]


def test_labels_of_a_batch():
    """Boxes, images, and pixels that are not ignored are counted by label."""
    boxes = BaseDataElement(gt_instances=InstanceData(labels=torch.tensor([1, 1, 4])))
    pixels = BaseDataElement(gt_sem_seg=PixelData(data=torch.tensor([[[0, 255], [0, 2]]])))
    images = BaseDataElement(gt_label=torch.tensor([3]))
    assert doctor.batch_labels(dict(data_samples=[boxes]), [255]) == (True, {1: 2, 4: 1})
    assert doctor.batch_labels(dict(data_samples=[pixels]), [255]) == (False, {0: 2, 2: 1})
    assert doctor.batch_labels(dict(data_samples=[images] * 2), [255]) == (False, {3: 2})
    assert doctor.batch_labels(dict(inputs=[]), [255]) == (False, None)  # images alone, to learn without labels


class Batches(list):
    """A dataloader."""

    dataset = None


@pytest.mark.parametrize(
    'labels, number, cause',
    [
        ([[3, 3], [3, 1], [2, 1]], 1, None),
        ([[3], [1], [3]], 2, None),  # batches of one image
        ([[3, 3], [3, 3]], 1, 'the first batches have only the label 3'),
        ([[[]], [[]]], 1, 'the first batches have no label'),
    ],
    ids=['second batch', 'one image', 'one class', 'no label'],
)
def test_batch_with_something_to_learn(labels, number, cause):
    """Of batches of a classifier, the first with two classes is learned."""
    batches = Batches(dict(data_samples=[DataSample().set_gt_label(label) for label in batch]) for batch in labels)
    runner, found = SimpleNamespace(model=nn.Linear(1, 1), train_dataloader=batches), doctor.Findings()
    assert doctor.labelled_batch(runner, found) is batches[number]
    assert [each.startswith(cause) for each in found.causes] == ([True] if cause else [])


@pytest.mark.parametrize('last, healthy', [(0.45, True), (0.55, False)])
def test_what_is_learned(last, healthy):
    """The loss falls to less than half, as the help says."""
    found = doctor.Findings(losses=[1.0, last], stages={'backbone': doctor.Stage(change=0.01, trained=1)})
    found.losses += [last] * 4
    assert bool([*doctor.rate_does_not_fit(found)]) != healthy


def test_borders_do_not_count():
    """The zeros that fill a batch would hide a deviation that is too small."""
    image = torch.full((3, 8, 8), -2.0) + torch.arange(64).view(8, 8) * 1e-4
    image[:, :4] = 0
    (mean, deviation), *_ = doctor.channel_statistics([image])
    assert mean == pytest.approx(-2, abs=0.01) and deviation < 0.01


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
        (dict(mean=doctor.MEAN, std=[58.0] * 3), dict(mean=doctor.MEAN, std=[58.0] * 3), 'are normalised twice, see'),
    ],
    ids=['healthy', 'order of the pipeline', 'both normalise'],
)
def test_order_of_channels(normalize, settings, sentence):
    """Wherever images are normalised: mean and std are in the order that the model gets."""
    pipeline = [dict(type='Normalize', **normalize)] if normalize else []
    cfg = Config(dict(train_dataloader=dict(dataset=dict(pipeline=pipeline))))
    with DefaultScope.overwrite_default_scope('mmseg'):
        preprocessor = MODELS.build(dict(type='SegDataPreProcessor', **settings))
    said = [*doctor.channel_order(pixels_of(cfg, preprocessor, 'train'))]
    assert sentence in said[0] if sentence else not said


def test_class_as_type():
    """A new-style config imports the class itself, and needs no custom_imports."""
    node = dict(type=ELSASwin)
    assert not [*doctor.missing_imports(ConfigDict(model=dict(backbone=node)))]
    assert [*doctor.missing_imports(ConfigDict(model=dict(backbone=dict(type='ELSASwin'))))]
