"""OpenMMLab's inferencers with the configs here, by themselves and in tools/predict.py, which tests/tools runs."""

from collections import OrderedDict
from types import SimpleNamespace

import mmdet.models
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmguard.errors import InputError
from mmguard.prediction import predict as prediction
from mmguard.prediction.predict import find_files
from tests import ROOT

CONFIGS = ['mask-rcnn_shunted-toy_fpn', 'elsa-swin-toy_upernet', 'elsa-swin-toy_in1k']


@pytest.fixture(autouse=True)
def own_scope(monkeypatch):
    """The inferencers set the scope of the process, which the next test would find."""
    monkeypatch.setattr(DefaultScope, '_instance_dict', OrderedDict())


@pytest.mark.parametrize('name', CONFIGS)
def test_inferencers_by_themselves(name, tmp_path, monkeypatch):
    """As docs/predict.md shows them: a config file and a checkpoint are all that they need, not even the data set."""
    config = str(ROOT / 'projects/lab/configs/toy' / f'{name}.py')
    cfg = Config.fromfile(config)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'c.pth')
    monkeypatch.chdir(tmp_path)
    image = np.zeros((64, 80, 3), np.uint8)
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import DetInferencer

        result = DetInferencer(model=config, weights='c.pth', device='cpu')(image)
        assert len(result['predictions'][0]['bboxes']) == len(result['predictions'][0]['masks'])
    elif cfg.default_scope == 'mmseg':
        from mmseg.apis import MMSegInferencer

        assert MMSegInferencer(model=config, weights='c.pth', device='cpu')(image)['predictions'].shape == (64, 80)
    else:
        from mmpretrain import ImageClassificationInferencer

        (result,) = ImageClassificationInferencer(model=config, pretrained='c.pth', device='cpu')(image)
        assert result['pred_scores'].shape == (1000,)


def test_find_files(tmp_path, log):
    """Files, folders and patterns; each file once, in the order given; names without suffix if they are unique."""
    for name in ('z.jpg', 'in/b.JPEG', 'in/a[1].png', 'in/notes.txt', 'in/deep/a.png'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'in' / 'folder.png').mkdir()
    found = find_files([f'{tmp_path}/z.jpg', f'{tmp_path}/in', f'{tmp_path}/**/*.png', f'{tmp_path}/in/a[1].png'])
    assert [(name, below) for name, below, _ in found] == [
        ('z', 'z.jpg'),
        ('in/a[1]', 'in/a[1].png'),
        ('in/b', 'in/b.JPEG'),
        ('in/deep/a', 'in/deep/a.png'),
    ]
    assert any(message.startswith('Left out') and message.endswith(f': {tmp_path}/in/notes.txt') for message in log)
    (tmp_path / 'in' / 'film.mp4').touch()
    (tmp_path / 'in' / 'film_000001.jpg').touch()  # as a frame would be named
    assert {name for name, *_ in find_files([f'{tmp_path}/in/film*'])} == {'film.mp4', 'film_000001.jpg'}


def test_links(tmp_path):
    """A file is found once, also through a link to the folder it is in. A broken link is found, to be named later."""
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / 'a.png').touch()
    (tmp_path / 'in' / 'loop').symlink_to('.')
    (tmp_path / 'in' / 'link.png').symlink_to('a.png')
    (tmp_path / 'in' / 'broken.png').symlink_to('absent.png')
    found = [name for name, *_ in find_files([f'{tmp_path}/in', f'{tmp_path}/**/*.png', f'{tmp_path}/in/loop'])]
    assert sorted(found) == ['a', 'broken', 'link']


@pytest.mark.parametrize('given', ['absent', 'empty', '*.txt'])
def test_nothing_found(tmp_path, given):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'notes.txt').touch()
    with pytest.raises(InputError, match='there is no file or folder|has neither images nor videos'):
        find_files([f'{tmp_path}/{given}'])


@pytest.mark.parametrize(
    'kind, settings, refused',
    [('PanopticFPN', {}, True), ('Mask2Former', {}, True), ('Mask2Former', dict(instance_on=True), False)],
)
def test_panoptic_maps_alone(tmp_path, monkeypatch, kind, settings, refused):
    """A model without objects is refused before the folder is made."""
    model = object.__new__(getattr(mmdet.models, kind))
    cfg = Config(dict(model=dict(type=kind, test_cfg=settings), launcher='none'))
    detector = prediction._Detector(cfg, SimpleNamespace(model=model), [], None, [])
    assert detector.finds_objects is not refused
    monkeypatch.setattr(prediction, 'build', lambda *_: (None, detector))
    (tmp_path / 'a.png').touch()
    if refused:
        with pytest.raises(InputError, match=f'^a {kind} with these settings predicts panoptic maps alone'):
            prediction.predict(cfg, 'c.pth', [str(tmp_path / 'a.png')], tmp_path / 'out')
        assert not (tmp_path / 'out').exists()
