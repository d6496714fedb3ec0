"""tools/make_token_labels.py as a user calls it, on small classifiers with random weights."""

import runpy
import sys
from collections import OrderedDict

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from tests import ROOT

pytest.importorskip('mmpretrain')

SWIN, VOLO = 'configs/toy/elsa-swin-toy_in1k.py', 'configs/toy/elsa-volo-toy_in1k.py'


@pytest.fixture(autouse=True)
def own_scope(monkeypatch):
    """The inferencers set the scope of the process, which the next test would find."""
    monkeypatch.setattr(DefaultScope, '_instance_dict', OrderedDict())


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(0)
    for name in ('one/a.JPEG', 'one/b.png', 'two/a.jpg'):
        path = tmp_path / 'images' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), random.integers(0, 256, (50, 70, 3), np.uint8))
    return tmp_path / 'images'


@pytest.fixture
def run(tmp_path, monkeypatch, images):
    """Run the tool on a new model; the model, the label maps by name, and the sentence that ends it, or None."""

    def run(config, *arguments):
        cfg = Config.fromfile(ROOT / config)
        torch.manual_seed(0)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            model = MODELS.build({**cfg.model, 'data_preprocessor': cfg.get('data_preprocessor')})
        torch.save(model.state_dict(), tmp_path / 'weights.pth')
        out, sentence = tmp_path / 'out', None
        options = ['--images', images, '--out', out, '--workers', 0, '--device', 'cpu']
        command = ['make_token_labels.py', config, tmp_path / 'weights.pth', *options, *arguments]
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, 'argv', list(map(str, command)))
        try:
            runpy.run_path(str(ROOT / 'tools' / 'make_token_labels.py'), run_name='__main__')
        except SystemExit as end:
            sentence = end.code
        assert not list(out.rglob('*.unfinished'))
        found = {str(file.relative_to(out)): torch.load(file, weights_only=True) for file in out.rglob('*.pt')}
        return model.eval(), found, sentence

    return run


@pytest.mark.parametrize('config, stride', [(SWIN, 32), (VOLO, 16)])
def test_label_maps(run, images, config, stride):
    """The five best classes of each place: those that the head sees in the part of the map, in plain loops."""
    model, found, sentence = run(config, '--places', 3)
    assert sentence is None and set(found) == {'one/a.pt', 'one/b.pt', 'two/a.pt'}
    image = cv2.imread(str(images / 'one' / 'b.png'))
    with torch.no_grad():
        from mmcv import imresize

        image = imresize(image, (3 * stride, 3 * stride), interpolation='bicubic', backend='pillow')
        data = dict(inputs=[torch.from_numpy(image).permute(2, 0, 1)])
        feats = model.extract_feat(model.data_preprocessor(data)['inputs'], stage='backbone')
        label_map = found['one/b.pt']
        assert label_map.shape == (2, 5, 3, 3) and label_map.dtype == torch.float16
        for y, x in np.ndindex(3, 3):
            if config == VOLO:
                logits = model.head.dense_logits(feats)[1][0, :, y, x]
            else:
                logits = model.head.fc(feats[-1][0, :, y, x])
            expected = logits.topk(5)
            torch.testing.assert_close(label_map[0, :, y, x].float(), expected.values, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(logits[label_map[1, :, y, x].long()], expected.values, atol=1e-3, rtol=1e-3)


def test_continues(run, tmp_path, images, capsys):
    """Label maps that are there stay, and a damaged image ends the run with its name."""
    (tmp_path / 'out' / 'one').mkdir(parents=True)
    torch.save(torch.zeros(2, 5, 1, 1), tmp_path / 'out' / 'one' / 'a.pt')
    _, found, _ = run(VOLO, '--places', 1)
    assert '2 label maps made, 1 kept' in capsys.readouterr().out and not found['one/a.pt'].any()
    (images / 'two' / 'c.jpg').write_bytes(b'no image')
    _, _, sentence = run(VOLO, '--places', 1)
    assert 'two/c.jpg cannot be used' in sentence and '\n' not in sentence


@pytest.mark.parametrize(
    'arguments, sentence',
    [(['--places', 0], '--places must be 1 or more, not 0.'), (['--images', 'nowhere'], 'There is no folder nowhere.')],
)
def test_refuses(run, arguments, sentence):
    assert run(VOLO, *arguments)[2] == sentence


def test_refuses_equal_names(run, images):
    """Two images whose label maps would be one file are found before anything is made."""
    (images / 'one' / 'a.png').write_bytes((images / 'one' / 'b.png').read_bytes())
    _, found, sentence = run(VOLO)
    assert not found and 'images with the same folder and name' in sentence


def test_refuses_detectors(run, images):
    _, _, sentence = run('configs/toy/shunted-toy_fpn.py')
    assert sentence == 'configs/toy/shunted-toy_fpn.py is not a config of a classifier.'
