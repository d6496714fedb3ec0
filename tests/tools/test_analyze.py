"""tools/analyze.py as a user calls it, on small models with random weights."""

import json
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmguard.runs.configs import load_config
from tests import ROOT
from tests.configs import FOUR_BANDS
from tests.tools.in_process import load_tool, run_tool

pytestmark = pytest.mark.usefixtures('no_layout')

CLASSIFIER = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'
DETECTOR = 'projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEGMENTORS = ['projects/lab/configs/toy/gsa-resnet-toy_fpn.py', 'projects/lab/configs/toy/msf-vit-toy_setr.py']


@pytest.fixture
def photos(tmp_path):
    """Two images of different sizes."""
    random = np.random.default_rng(0)
    (tmp_path / 'photos').mkdir()
    for name, size in {'a.png': (64, 80), 'b.jpg': (70, 50)}.items():
        cv2.imwrite(str(tmp_path / 'photos' / name), random.integers(0, 256, (*size, 3), np.uint8))
    return tmp_path / 'photos'


@pytest.fixture
def run(tmp_path):
    """Run the tool on a model with random weights; the sentence that ends it, or None, and what it printed."""

    def run(config, *arguments):
        cfg = Config.fromfile(ROOT / config)
        torch.manual_seed(0)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            torch.save(MODELS.build(cfg.model).state_dict(), tmp_path / 'weights.pth')
        options = '--out', tmp_path / 'out', '--device', 'cpu'
        done = run_tool('analyze', config, tmp_path / 'weights.pth', *options, *arguments)
        return done.sentence, done.stdout

    return run


def numbers(tmp_path, name):
    """The JSON of a sheet, which is also drawn."""
    assert cv2.imread(str(tmp_path / 'out' / f'{name}.png')).size
    return json.loads((tmp_path / 'out' / f'{name}.json').read_text())


def test_classifier(run, photos, tmp_path):
    sentence, said = run(CLASSIFIER, '--images', photos, '--query', '0.25', '0.75')
    assert sentence is None and said.count('.png') == 5
    attention = numbers(tmp_path, 'a_attention')
    layers = attention['layers']
    assert [one['layer'] for one in layers] == ['ELSA'] * 4 + ['WindowAttention']
    assert [(one['stage'], one['block'], one['stride']) for one in layers[2:]] == [(3, 1, 16), (3, 2, 16), (4, 1, 32)]
    assert len(layers[-1]['heads']) == 8 and all(abs(head['sum'] - 1) < 1e-5 for head in layers[-1]['heads'])
    assert len(numbers(tmp_path, 'norms')['mean']) == 6
    assert numbers(tmp_path, 'similarity')['stages'][0]['random'] == pytest.approx(1 / 8)
    assert [one['stage'] for one in numbers(tmp_path, 'erf')['stages']] == [1, 2, 3, 4]


def test_four_bands(run, photos, tmp_path):
    """Images that the pipeline normalises: the query is found, at its place, and the picture is that of the file."""
    (tmp_path / 'four.py').write_text(FOUR_BANDS)
    image = np.random.default_rng(0).integers(0, 256, (64, 80, 4), np.uint8)
    cv2.imwrite(str(photos / 'four.png'), image)
    arguments = '--images', photos / 'four.png', '--query', 40, 16, '--what', 'attention'
    sentence, _ = run(tmp_path / 'four.py', *arguments)
    assert sentence is None
    x, y = numbers(tmp_path, 'four_attention')['query']
    assert abs(x - 81) < 2 and abs(y - 33) < 2
    cfg = load_config(tmp_path / 'four.py')
    norm = cfg.test_dataloader.dataset.pipeline[1]
    x = torch.from_numpy((image - np.float32(norm.mean)) / np.float32(norm.std)).permute(2, 0, 1)[None]
    model = SimpleNamespace(cfg=cfg, inferencer=SimpleNamespace(model=SimpleNamespace(data_preprocessor=None)))
    np.testing.assert_allclose(load_tool('analyze').picture_of(model, x) * 255, image[..., 2::-1], atol=1)


def test_detector(run, photos, tmp_path):
    """The query follows the pipeline, which makes the image larger; only the sheets that are asked for."""
    sentence, _ = run(DETECTOR, '--images', photos / 'a.png', '--query', 79, 0, '--what', 'attention')
    assert sentence is None and sorted(file.name for file in (tmp_path / 'out').iterdir()) == [
        'a_attention.json',
        'a_attention.png',
    ]
    seen = numbers(tmp_path, 'a_attention')
    first, *_ = seen['layers']
    assert first['layer'] == 'ShuntedAttention' and {head['cell'] for head in first['heads']} == {4, 8}
    x, y = seen['query']
    assert first['query'] == [0, int(x / 4)] and x > 79 / 80 * first['query'][1] and y < 2


@pytest.mark.parametrize('config', SEGMENTORS)
@pytest.mark.every(2)
def test_segmentors(run, photos, tmp_path, config):
    sentence, said = run(config, '--images', photos / 'b.jpg', '--what', 'attention', 'similarity')
    assert sentence is None and numbers(tmp_path, 'b_attention')['layers']
    assert ('There is no sheet of similarity' in said) == ('gsa' in config)  # it has no projection back


def test_refused(run, photos, tmp_path, monkeypatch):
    """Mistakes end in one sentence, before anything is written; the pipeline may cut off what a query is in."""
    (photos / 'broken.png').write_bytes((photos / 'a.png').read_bytes()[:500])
    cv2.imwrite(str(tmp_path / 'wide.png'), np.zeros((64, 300, 3), np.uint8))
    (tmp_path / 'timm.py').write_text(f"""
_base_ = {str(ROOT / CLASSIFIER)!r}
model = dict(_delete_=True, type='TimmClassifier', model_name='resnet10t', num_classes=10)
""")
    monkeypatch.setitem(sys.modules, 'pytorch_grad_cam', None)
    image = photos / 'a.png'
    for config, arguments, sentence in (
        (CLASSIFIER, [image, '--query', 80, 0], 'is outside'),
        (CLASSIFIER, [tmp_path / 'wide.png', '--query', 2, 2], "the config's test pipeline cuts off"),
        (CLASSIFIER, [photos], 'broken.png cannot be used'),
        (CLASSIFIER, [image, '--budget', '1'], '--measure and --budget are for --what grafting'),
        (CLASSIFIER, [image, '--what', 'cam'], 'pip install grad-cam'),
        (DETECTOR, [image, '--what', 'cam'], 'cam is for classifiers'),
        (tmp_path / 'timm.py', [image], 'can be analysed, not TimmClassifier'),
    ):
        assert sentence in run(config, '--images', *arguments)[0]
        assert not list((tmp_path / 'out').glob('*'))


def test_mixed_token_mixers(run, photos, tmp_path):
    """The similarity of a stage is of the projections that all of its blocks have."""
    (tmp_path / 'mixed.py').write_text(f"""
_base_ = {str(ROOT / CLASSIFIER)!r}
arch = dict(embed_dim=8, depths=(2,), num_heads=(2,))
stages = [[dict(type='MeanShiftWindow'), dict(type='WindowAttention')]]
model = dict(
    backbone=dict(_delete_=True, type='SwinFrame', arch=arch, attention=stages, out_indices=(0,)),
    head=dict(in_channels=8),
)
""")
    sentence, _ = run(tmp_path / 'mixed.py', '--images', photos / 'a.png', '--what', 'similarity')
    (stage,) = numbers(tmp_path, 'similarity')['stages']
    assert sentence is None and stage['blocks'] == 2
    assert [key for key in stage if '-' in key] == ['Q-K', 'Q-V', 'Q-W', 'K-V', 'K-W', 'V-W']


def test_cam(run, photos, tmp_path):
    """Also of a frozen backbone, which has gradients of its input only."""
    pytest.importorskip('pytorch_grad_cam')
    (tmp_path / 'c.py').write_text(f"""
_base_ = {str(ROOT / CLASSIFIER)!r}
model = dict(backbone=dict(frozen_stages=4))
""")
    sentence, _ = run(tmp_path / 'c.py', '--images', photos / 'a.png', '--what', 'cam')
    assert sentence is None and 0 < numbers(tmp_path, 'a_cam')['score'] < 1
