"""tools/train.py and tools/test.py on inputs that are broken, hostile or odd; docs/robustness.md lists them.

Tools run in this process; test_worker_and_exit_status has one run of its own as a user sees it.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from mmdet.visualization import DetLocalVisualizer
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.runner import Runner
from mmseg.visualization import SegLocalVisualizer
from PIL import Image

from tests import ROOT

MASK_RCNN = 'configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEMANTIC_FPN = 'configs/toy/shunted-toy_fpn.py'
#: of each, a training of two steps and a validation, without workers
SHORT = {
    MASK_RCNN: ['train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'model.test_cfg.rcnn.score_thr=0.'],
    SEMANTIC_FPN: ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'model.test_cfg.mode=whole'],
}
NO_WORKERS = ['train_dataloader.batch_size=2'] + [
    f'{split}_dataloader.{setting}'
    for split in ('train', 'val', 'test')
    for setting in ('num_workers=0', 'persistent_workers=False')
]


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    root = tmp_path_factory.mktemp('hostile') / 'toy'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', ['make_toy_data', str(root), '--train', '4', '--val', '1'])
        runpy.run_path(str(ROOT / 'tools' / 'dev' / 'make_toy_data.py'), run_name='__main__')
    return root


@pytest.fixture
def data(toy, tmp_path, monkeypatch):
    """A copy of the toy data, to be damaged."""
    root = tmp_path / 'data'
    shutil.copytree(toy, root)
    monkeypatch.setenv('COCO_ROOT', f'{root}/coco/')
    monkeypatch.setenv('ADE20K_ROOT', f'{root}/ADEChallengeData2016')
    return root


@pytest.fixture
def run(data, tmp_path, monkeypatch):
    """Call a tool; what it says in the end, None if all went well."""

    def run(tool: str, config: str, *arguments: str, options: list[str] = ()) -> str | None:
        for cls in (DetLocalVisualizer, SegLocalVisualizer):
            cls._instance_dict.clear()  # they would write where the last run did
        monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)  # asks compilers for their versions
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(
            sys,
            'argv',
            [
                tool,
                str(config),
                *map(str, arguments),
                '--work-dir',
                str(tmp_path / 'work'),
                '--cfg-options',
                *NO_WORKERS,
                *SHORT[config],
                *options,
            ],
        )
        try:
            runpy.run_path(str(ROOT / 'tools' / f'{tool}.py'), run_name='__main__')
        except SystemExit as end:
            assert isinstance(end.code, str) and '\n' not in end.code  # Python prints it and exits with 1
            assert not list((tmp_path / 'work').rglob('*.pth'))
            return end.code

    return run


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    """An untrained Mask R-CNN's, as MMEngine would save them for the test."""
    path = tmp_path_factory.mktemp('weights') / 'mask-rcnn.pth'
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules

    register_all_modules()
    torch.save({'state_dict': MODELS.build(Config.fromfile(ROOT / MASK_RCNN).model).state_dict(), 'meta': {}}, path)
    return path


def annotations(data, split='train'):
    return data / 'coco' / 'annotations' / f'instances_{split}2017.json'


class Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), 'w')


@pytest.mark.parametrize('how', ['load_from', 'resume', 'test'])
def test_code_in_checkpoints_is_not_run(run, tmp_path, how):
    """By no way in, although MMEngine would run it by each; the work folder has no checkpoint then."""
    path = tmp_path / 'evil.pth'
    torch.save({'state_dict': {'a': torch.ones(1)}, 'meta': Code(tmp_path / 'proof')}, path)
    message = {
        'load_from': lambda: run('train', MASK_RCNN, options=[f'load_from={path}']),
        'resume': lambda: run('train', MASK_RCNN, '--resume', path),
        'test': lambda: run('test', MASK_RCNN, path),
    }[how]()
    assert 'code in a file is not run' in message and str(path) in message and '--trust-checkpoint' in message
    assert not (tmp_path / 'proof').exists()


@pytest.mark.slow
def test_trusted_checkpoints(run, tmp_path):
    """--trust-checkpoint does what MMEngine does: the code runs; what is no model's is still refused."""
    torch.save({'state_dict': {'a': torch.ones(1)}, 'meta': Code(tmp_path / 'proof')}, tmp_path / 'c.pth')
    assert 'of another model' in run('test', MASK_RCNN, tmp_path / 'c.pth', '--trust-checkpoint')
    assert (tmp_path / 'proof').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    'change, message',
    [
        (
            lambda c: c['state_dict'].pop('rpn_head.rpn_conv.weight') is None,
            'MaskRCNN has 1 tensors that are not there',
        ),
        (
            lambda c: c['state_dict'].update({'neck.fpn_convs.0.conv.bias': torch.ones(3)}),
            'being neck.fpn_convs.0.conv.bias',
        ),
        (lambda c: c['state_dict']['rpn_head.rpn_conv.bias'].fill_(float('nan')), 'has NaN in rpn_head.rpn_conv.bias'),
        (
            lambda c: c['state_dict'].pop(next(name for name in c['state_dict'] if name.startswith('backbone.'))),
            'MaskRCNN has 1 tensors that are not there',
        ),
    ],
)
def test_tested_weights_are_complete(run, weights, tmp_path, change, message):
    """MMEngine would test a head that is not in the checkpoint with its random weights."""
    contents = torch.load(weights)
    change(contents)
    torch.save(contents, tmp_path / 'c.pth')
    assert message in run('test', MASK_RCNN, tmp_path / 'c.pth')


def test_weights_alone_cannot_be_resumed(run, weights):
    assert 'holds no state of a training' in run('train', MASK_RCNN, '--resume', weights)


@pytest.mark.slow
def test_half_precision_weights_are_tested(run, weights, tmp_path):
    contents = torch.load(weights)
    torch.save(
        {'state_dict': {k: v.half() if v.is_floating_point() else v for k, v in contents['state_dict'].items()}},
        tmp_path / 'c.pth',
    )
    assert run('test', MASK_RCNN, tmp_path / 'c.pth') is None


def edited(change):
    """A damage to the training annotations."""

    def damage(data):
        contents = json.loads(annotations(data).read_text())
        change(contents)
        annotations(data).write_text(json.dumps(contents))

    return damage


@pytest.mark.slow
@pytest.mark.parametrize(
    'damage, message',
    [
        (lambda data: annotations(data).unlink(), 'No such file or directory'),
        (
            lambda data: annotations(data).write_text(annotations(data).read_text()[:999]),
            "is no annotation file in COCO's",
        ),
        (edited(lambda c: c['annotations'][0].update(bbox=[1, 2, 3])), 'annotation 1 has bbox [1, 2, 3], which should'),
        (edited(lambda c: c['categories'].pop(0)), 'has no category person'),
        (edited(lambda c: c['annotations'].clear()), 'the dataset has no picture'),
        (edited(lambda c: c['annotations'][0].pop('segmentation')), 'has no segmentation, which LoadAnnotations'),
        (lambda data: (data / 'coco' / 'train2017' / '000000000002.jpg').unlink(), 'names 1 files that are not there'),
        (
            lambda data: (data / 'coco' / 'train2017' / '000000000002.jpg').write_bytes(b'none'),
            '000000000002.jpg cannot',
        ),
        (lambda data: (data / 'coco' / 'train2017' / '000000000002.jpg').write_bytes(b''), '000000000002.jpg cannot'),
    ],
)
def test_broken_coco(run, data, damage, message):
    damage(data)
    assert message in run('train', MASK_RCNN)


@pytest.mark.slow
@pytest.mark.parametrize(
    'damage, message',
    [
        (lambda pictures, maps: maps.unlink(), 'names 1 files that are not there'),
        (lambda pictures, maps: maps.write_bytes(b'no map'), '000000000002.png cannot be used'),
        (
            lambda pictures, maps: cv2.imwrite(str(maps), np.full_like(cv2.imread(str(maps), 0), 200)),
            'has label 199 where',
        ),
        (lambda pictures, maps: cv2.imwrite(str(maps), cv2.imread(str(maps), 0)[:-7]), 'a label map has a number'),
        (lambda pictures, maps: cv2.imwrite(str(maps), cv2.imread(str(maps))), 'a label map has a number per pixel'),
        (lambda pictures, maps: shutil.rmtree(pictures.parent), 'No such file or directory'),
        (lambda pictures, maps: [file.unlink() for file in pictures.parent.iterdir()], 'the dataset has no picture'),
    ],
)
def test_broken_ade20k(run, data, damage, message):
    root = data / 'ADEChallengeData2016'
    damage(root / 'images' / 'training' / '000000000002.jpg', root / 'annotations' / 'training' / '000000000002.png')
    assert message in run('train', SEMANTIC_FPN)


def odd_pictures(kind):
    """Four pictures of three channels that are stored in another way, or of odd sizes."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 70, 3), np.uint8))
    if kind == 'modes':
        return [picture.convert('L'), picture.convert('CMYK'), picture.convert('RGBA'), picture.convert('P')]
    return [picture.resize(size) for size in ((1, 100), (100, 1), (20000, 300), (300, 20000))]


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['modes', 'sizes'])
@pytest.mark.parametrize('config', SHORT)
def test_odd_pictures_are_learned_from(run, data, config, kind):
    """Grey, CMYK, with alpha or a palette, 1 pixel and 20 000 pixels wide or high: all train and validate."""
    coco, ade = data / 'coco', data / 'ADEChallengeData2016'
    contents = json.loads(annotations(data).read_text())
    contents['annotations'].clear()
    for index, picture in enumerate(odd_pictures(kind), 1):
        suffix = 'png' if picture.mode in ('RGBA', 'P') else 'jpeg'
        for split, ade_split in (('train2017', 'training'), ('val2017', 'validation')):
            for folder in (coco / split, ade / 'images' / ade_split):
                picture.save(folder / f'{index:012d}.jpg', suffix)
            Image.fromarray(np.full((picture.height, picture.width), 5, np.uint8)).save(
                ade / 'annotations' / ade_split / f'{index:012d}.png'
            )
        width, height = picture.size
        contents['images'][index - 1].update(width=width, height=height)
        contents['annotations'].append(
            dict(
                id=index,
                image_id=index,
                category_id=34,
                iscrowd=0,
                area=width * height,
                bbox=[0, 0, width, height],
                segmentation=[[0, 0, width, 0, width, height, 0, height]],
            )
        )
    for split in ('train', 'val'):
        annotations(data, split).write_text(json.dumps(contents))
    assert run('train', config) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    'config, options', [(MASK_RCNN, ['train_dataloader.dataset.filter_cfg.filter_empty_gt=False']), (SEMANTIC_FPN, [])]
)
def test_empty_ground_truth_is_learned_from(run, data, config, options, log):
    """Pictures without an object, and label maps that are ignored all over, train on, with finite losses."""
    edited(lambda contents: contents['annotations'].clear())(data)
    for path in (data / 'ADEChallengeData2016' / 'annotations' / 'training').iterdir():
        cv2.imwrite(str(path), 0 * cv2.imread(str(path), 0))
    assert run('train', config, options=[*options, 'default_hooks.logger.interval=1']) is None
    losses = [message for message in log if ' loss: ' in message]
    assert not any('nan' in message for message in losses)


@pytest.mark.parametrize(
    'config, option, message',
    [
        (
            MASK_RCNN,
            'model.backbone.drop_path_rat=0.1',
            "keyword argument 'drop_path_rat': did you mean drop_path_rate",
        ),
        (MASK_RCNN, 'train_cfg.max_epoch=1', "keyword argument 'max_epoch': did you mean max_epochs?"),
        (MASK_RCNN, 'optim_wrapper.optimizer.lrr=1', "keyword argument 'lrr': did you mean lr?"),
        (MASK_RCNN, 'optim_wraper.x=1', 'sets optim_wraper, which nothing reads: did you mean optim_wrapper?'),
        (MASK_RCNN, 'default_hooks.checkpoint.intervall=1', 'unknown argument intervall: did you mean interval?'),
        (MASK_RCNN, 'model.backbone.type=ShuntedTransfomer', 'registry: did you mean ShuntedTransformer'),
        (MASK_RCNN, 'optim_wrapper.optimizer.type=AdmW', 'there is no optimizer AdmW: did you mean AdamW'),
        (MASK_RCNN, 'model.backbone.drop_path_rate=1.5', 'drop_path_rate must be in [0, 1), not 1.5'),
        (MASK_RCNN, 'optim_wrapper.optimizer.lr=-1', 'Invalid learning rate: -1, building AdamW'),
        (MASK_RCNN, 'train_dataloader.batch_size=0', 'batch_size should be a positive integer'),
        (MASK_RCNN, 'train_dataloader=3', 'train_dataloader must be a dict, not 3'),
        (MASK_RCNN, 'train_cfg.max_epochs=0', 'max_epochs or max_iters of train_cfg must be 1 or more'),
        (MASK_RCNN, 'model.roi_head.bbox_head.num_classes=7', '80 classes and roi_head.bbox_head of the model 7'),
        (SEMANTIC_FPN, 'model.decode_head.num_classes=7', '150 classes and decode_head of the model 7'),
        (SEMANTIC_FPN, 'model.decode_head.in_channels=7', 'AssertionError: assert isinstance(in_channels'),
        (SEMANTIC_FPN, 'model.neck.in_channels=[1,2,3,4]', 'to have 1 channels, but got 32'),
    ],
)
def test_mistakes_in_configs(run, tmp_path, config, option, message):
    """A misspelt name or an impossible value is named, near misses beside it; what is not ours has its traceback in the
    log."""
    sentence = run('train', config, options=[option])
    assert message in sentence
    if 'traceback in' in sentence:
        log = sentence.rpartition('traceback in ')[2].rstrip(')')
        assert 'Traceback (most recent call last)' in open(log).read()


@pytest.mark.parametrize(
    'text, message',
    [
        ('model = dict(\n  a=1,\n  b==)', 'SyntaxError'),
        ('_base_ = "./no.py"', "No such file or directory: '{folder}/./no.py'"),
        ('a = b', "NameError: name 'b' is not defined"),
        ('', 'has no model'),
        ('_base_ = "{root}/' + MASK_RCNN + '"\ntrain_cgf = dict(max_epochs=1)', 'train_cgf, which nothing reads: did'),
    ],
)
def test_broken_configs(run, tmp_path, monkeypatch, text, message):
    """Of a config that cannot be read, nothing is written."""
    path = tmp_path / 'config.py'
    path.write_text(text.replace('{root}', str(ROOT)))
    monkeypatch.setitem(SHORT, path, [])
    assert message.replace('{folder}', str(tmp_path)) in run('train', path)
    assert not (tmp_path / 'work').exists()


def test_worker_and_exit_status(data, tmp_path):
    """A picture that is cut short, found by a worker of the dataloader: one sentence at the end of stderr, status 1."""
    path = data / 'coco' / 'train2017' / '000000000002.jpg'
    path.write_bytes(path.read_bytes()[:3000])
    done = subprocess.run(
        [sys.executable, ROOT / 'tools' / 'train.py', MASK_RCNN, '--work-dir', tmp_path / 'work'],
        cwd=ROOT,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=''),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f'{path} cannot be used: ')


def test_mistakes_of_ours_keep_their_traceback(run, monkeypatch):
    """An error after the first step, or outside of the Runner, is no user's mistake and is left as it is."""

    def broken(*_):
        raise KeyError('ours')

    monkeypatch.setattr(Runner, 'from_cfg', broken)
    with pytest.raises(KeyError, match='ours'):
        run('train', MASK_RCNN)
    monkeypatch.undo()
