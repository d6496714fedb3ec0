"""tools/publish.py: what it writes is read as weights, with the settings that tensors do not show."""

import re
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from safetensors.torch import load_file

from mmattn.outputs import whole_file
from mmattn.publishing import halved, publish, share, starting_licenses
from mmattn.weights import CheckpointError, read_file
from mmguard.checks.classes import saved_meta
from mmguard.errors import InputError
from mmguard.runs.checkpoints import backbone_settings
from mmguard.runs.rows import read_row
from mmguard.runs.trained import read_trained
from mmguard.weights.licenses import chosen_license
from tests import ROOT
from tests.tools.in_process import NO_WORKERS, run_tool

CONFIG = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'
SEGMENTS = dict(type='mmseg.FCNHead', in_channels=512, channels=8, num_classes=3, num_convs=1)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint of a classifier after one epoch of a few toy images."""
    folder = tmp_path_factory.mktemp('publish')
    assert run_tool('make_toy_data', folder / 'toy', '--train', 4, '--val', 2).returncode == 0
    options = ['train_cfg.max_epochs=1', 'train_dataloader.batch_size=2', *NO_WORKERS]
    environment = dict(IMAGENET_ROOT=f'{folder}/toy/imagenet', CUDA_VISIBLE_DEVICES='')
    done = run_tool('train', CONFIG, '--work-dir', folder / 'work', '--cfg-options', *options, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / 'work' / 'epoch_1.pth'


@pytest.mark.slow
def test_published_weights_load(trained, tmp_path):
    """init_cfg takes them. Matrices are rounded to half precision, and a backbone with other settings refuses them."""
    target = tmp_path / 'elsa'
    options = ['--figures', 'top-1=5.0', '--data', 'toy images', '--license', 'mit']
    done = run_tool('publish', CONFIG, trained, target, *options)
    assert done.returncode == 0, done.stderr
    arguments = Config.fromfile(target / 'config.py').model.backbone.to_dict()
    start = dict(type='Pretrained', checkpoint=str(target / 'model.safetensors'))
    backbone = MODELS.build(dict(arguments, init_cfg=start))
    backbone.init_weights()
    given = read_file(trained)['state_dict']
    name = 'layers.0.blocks.0.mlp.fc1.weight'
    assert torch.equal(backbone.state_dict()[name], given[f'backbone.{name}'].half().float())
    assert load_file(target / 'model.safetensors')['backbone.norm3.weight'].dtype == torch.float32
    with pytest.raises(CheckpointError, match='dilation'):
        MODELS.build(dict(arguments, dilation=2, init_cfg=start)).init_weights()
    assert 'work_dir' not in Config.fromfile(target / 'config.py')  # as this machine would run it
    card = (target / 'README.md').read_text()
    assert '| top-1 |' in card and '| 5.0 |' in card and 'Data: toy images.' in card


def test_halved():
    """A matrix stays as it is if it has a value beyond the range of half precision. Tied weights can be written."""
    assert halved(torch.full((2, 2), 0.1)).dtype == torch.float16
    large = torch.full((2, 2), 7e4)
    assert torch.equal(halved(large), large) and halved(large).data_ptr() != large.data_ptr()


@pytest.mark.parametrize(
    ('figures', 'contents', 'message'),
    [
        (['top-1'], {}, '--figures must be NAME=VALUE, not top-1'),
        (
            ['top-1=5', '--license', 'mit'],
            {'state_dict': {'a': torch.ones(1)}},
            'it is not a checkpoint of tools/train.py',
        ),
        (['top-1=5'], {}, 'give the license of the weights, such as apache-2.0: the training started from no weights'),
    ],
    ids=['figure', 'checkpoint', 'license'],
)
def test_refused(tmp_path, figures, contents, message):
    """Nothing is written for a figure without a value, a checkpoint whose settings nobody knows, or without a
    license."""
    torch.save(contents, tmp_path / 'c.pth')
    done = run_tool('publish', CONFIG, tmp_path / 'c.pth', tmp_path / 'out', '--data', 'toy', '--figures', *figures)
    assert done.returncode == 1 and message in done.stderr and not (tmp_path / 'out').exists()


@pytest.fixture
def resnet(tmp_path):
    """The config of a small classifier whose backbone has batch norms, the classifier, and its checkpoint."""
    depth = dict(depths=(1, 1, 1, 1), stem_channels=8, base_channels=16, expansion=4)
    settings = dict(type='GSAResNet', depth=depth, gsa_stages=(3,), num_heads=2, img_size=64)
    neck, head = dict(type='GlobalAveragePooling'), dict(type='LinearClsHead', num_classes=3, in_channels=512)
    model = dict(type='ImageClassifier', backbone=settings, neck=neck, head=head)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        classifier = MODELS.build(model)
    note = dict(mmattn=backbone_settings(classifier))
    torch.save(dict(state_dict=classifier.state_dict(), meta=note), tmp_path / 'c.pth')
    return Config(dict(model=model, default_scope='mmpretrain')), classifier, tmp_path / 'c.pth'


def test_parameters_of_the_card(tmp_path):
    """Statistics of batch norms are no parameters. Whoever may read the card may read the weights."""
    tensors = {'a.weight': torch.zeros(20_000), 'a.running_var': torch.zeros(10**6)}
    fields = dict.fromkeys(('name', 'task', 'tag', 'backbone', 'origin', 'code', 'more', 'data'), '')
    share(tmp_path, 'config.py', lambda: (tensors, ({},), '', fields), 'mit', {})
    assert '| 0.02 |' in (tmp_path / 'README.md').read_text()
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1


def test_all_files_or_none(monkeypatch, resnet, tmp_path):
    """A disk that is full when the last file is written leaves the folder as it was."""
    cfg, _, checkpoint = resnet
    write = partial(publish, cfg, 'name', partial(read_trained, cfg, checkpoint), tmp_path / 'out', {}, 'none')
    write('mit')
    before = {file.name: file.read_bytes() for file in (tmp_path / 'out').iterdir()}

    def full(path):
        if path.name == 'README.md':
            raise InputError(f'{path} cannot be written')
        return whole_file(path)

    monkeypatch.setattr('mmattn.publishing.whole_file', full)
    cfg.model.backbone.with_cp = True
    with pytest.raises(InputError, match='README.md cannot be written'):
        write('apache-2.0')
    assert {file.name: file.read_bytes() for file in (tmp_path / 'out').iterdir()} == before


@pytest.mark.parametrize(
    'change',
    [
        lambda model: model.backbone.update(beyond='stretch'),
        lambda model: model.head.update(num_classes=4),
        lambda model: (
            model.update(type='EncoderDecoder', _scope_='mmseg', neck=None, decode_head=SEGMENTS) or model.pop('head')
        ),
    ],
)
def test_checkpoint_of_another_config(resnet, tmp_path, change):
    """As with the row of a config that was not named: the card would have settings that refuse the weights. The same
    for weights of another task, or another number of classes."""
    cfg, _, checkpoint = resnet
    change(cfg.model)
    with pytest.raises(CheckpointError, match='Only weights of the config itself are published'):
        publish(cfg, 'name', partial(read_trained, cfg, checkpoint), tmp_path / 'out', {}, 'none', 'mit')
    assert not (tmp_path / 'out').exists()


def test_nothing_of_this_machine(resnet, tmp_path):
    """What is published has no secrets, no absolute paths and no name of a user. Paths within a folder stay."""
    cfg, _, checkpoint = resnet
    home, user = str(Path.home()), Path.home().name
    cfg.update(
        work_dir=f'{home}/runs',
        load_from='/srv/first.pth',
        data_root=f'/srv/{user}/coco/',
        train_dataloader=dict(dataset=dict(ann_file=f'/srv/{user}/coco/a/train.json', pipeline=[f'{home}/b/c.txt'])),
        folders=('/home/alice', f'/mnt/{user}', '~bob/x.pth', 'C:\\\\Users\\\\eve\\\\y.pth', 'data/z', Path('/srv/w')),
        visualizer=dict(init_kwargs=dict(api_key='0f0f')),
    )
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='https://me:pass@a.b/w.pth?X-Amz-Signature=0f0f')
    contents = torch.load(checkpoint)
    contents['meta'].update(cfg=f'work_dir = {home!r}', hostname='alpha')
    contents['meta']['mmattn']['backbone']['file'] = f'{home}/w.pth'
    torch.save(contents, checkpoint)
    publish(
        cfg, 'name', partial(read_trained, cfg, checkpoint), tmp_path / 'out', {}, 'see https://a.b/w?sig=0f0f', 'mit'
    )
    for file in (tmp_path / 'out').iterdir():
        text = file.read_bytes().decode(errors='replace')
        for private in ('0f0f', 'pass@', home, '/srv', 'alice', 'bob', 'eve', str(tmp_path), 'alpha'):
            assert private not in text, (file.name, private)
    published = Config.fromfile(tmp_path / 'out' / 'config.py')
    assert 'work_dir' not in published and 'load_from' not in published and published.data_root == 'coco/'
    assert published.train_dataloader.dataset == dict(ann_file='coco/a/train.json', pipeline=['c.txt'])
    assert published.folders == ('data', 'data', 'x.pth', 'y.pth', 'data/z', 'w')
    assert published.model.backbone.init_cfg.checkpoint == 'https://***@a.b/w.pth?***'


TIMM = 'timm:swin_tiny_patch4_window7_224.ms_in1k'


@pytest.mark.parametrize(
    'given, start, load_from, expected',
    [
        ('cc-by-4.0', None, None, 'cc-by-4.0'),
        (None, TIMM, None, 'mit'),
        (None, TIMM, 'timm:vit_small_patch14_dinov2.lvd142m', 'lvd142m has apache-2.0'),
        (None, TIMM, 'own.pth', 'own.pth has one that is not known here'),
        (None, None, None, 'started from no weights that are named, so the choice is yours'),
    ],
    ids=['given', 'of timm', 'two', 'unknown', 'random'],
)
def test_license(log, given, start, load_from, expected):
    """It is given, or that of the weights of timm that the training started from; it is never made up."""
    init_cfg = start and dict(type='Pretrained', checkpoint=start)
    cfg = Config(dict(model=dict(type='A', backbone=dict(type='B', init_cfg=init_cfg)), load_from=load_from))
    if ' ' in expected:
        with pytest.raises(InputError, match=expected):
            chosen_license(given, starting_licenses(cfg))
    else:
        assert chosen_license(given, starting_licenses(cfg)) == expected
        assert [*log] == (
            [f'The license is {given}, and that of {start} is mit: see whether its terms allow this.']
            if given and start
            else []
        )


def test_classes_of_the_published_weights(resnet, tmp_path):
    """A test with another order of classes compares them, as those of a checkpoint."""
    cfg, _, checkpoint = resnet
    contents = torch.load(checkpoint)
    contents['meta']['dataset_meta'] = dict(classes=('bee', 'ant', 'cow'), palette=[(0, 0, 1)] * 3)
    torch.save(contents, checkpoint)
    publish(cfg, 'name', partial(read_trained, cfg, checkpoint), tmp_path / 'out', {}, 'none', 'mit')
    (meta,) = saved_meta(read_file(tmp_path / 'out' / 'model.safetensors'))
    assert meta == dict(classes=['bee', 'ant', 'cow'], palette=[[0, 0, 1]] * 3)
    assert '\nlicense: mit\n' in (tmp_path / 'out' / 'README.md').read_text()


@pytest.mark.slow
@pytest.mark.parametrize('config', ['retinanet_fpn_coco', 'fpn_ade20k', 'classifier_in1k'])
def test_the_card_predicts(tmp_path, monkeypatch, config):
    """Its code predicts in OpenMMLab's inferencer, with the weights and classes of the file."""
    cfg = read_row(ROOT / f'projects/lab/configs/toy/compare/{config}.py', 'swin')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    classes = [f'class {number}' for number in range({'mmpretrain': 20, 'mmseg': 7, 'mmdet': 5}[cfg.default_scope])]
    meta = dict(mmattn=backbone_settings(model), dataset_meta=dict(classes=classes))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), tmp_path / 'c.pth')
    publish(cfg, 'name', partial(read_trained, cfg, tmp_path / 'c.pth'), tmp_path / 'out', {}, 'none', 'mit')
    code = re.findall(r'```python\n(.*?)```', (tmp_path / 'out/README.md').read_text(), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path / 'out')
    monkeypatch.setattr(DefaultScope, '_instance_dict', OrderedDict())  # that of a new process
    Image.new('RGB', (80, 60), 'red').save('image.jpg')
    exec(code, names := {})
    predicts = names['predict'].model
    noted = predicts.dataset_meta if hasattr(predicts, 'dataset_meta') else predicts._dataset_meta
    assert list(noted['classes']) == classes
    own = predicts.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(own[name], halved(value).to(value.dtype)), name
