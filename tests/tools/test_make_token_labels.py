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
    """Whole label maps stay, damaged ones are made again, and a damaged image is named after the others are done."""
    _, before, _ = run(VOLO, '--places', 1)
    assert '3 label maps made, 0 kept' in capsys.readouterr().out
    short, changed, whole = (tmp_path / 'out' / name for name in ('one/a.pt', 'one/b.pt', 'two/a.pt'))
    short.write_bytes(short.read_bytes()[:-100])
    content = bytearray(changed.read_bytes())
    content[content.index(before['one/b.pt'].numpy().tobytes())] ^= 1
    changed.write_bytes(content)
    kept = whole.stat()
    (images / 'one' / '0.jpg').write_bytes(b'no image')
    (images / 'one' / 'folder.png').mkdir()
    (tmp_path / 'three').mkdir()
    (tmp_path / 'three' / 'c.png').symlink_to(images / 'two' / 'a.jpg')
    (images / 'three').symlink_to(tmp_path / 'three')
    _, found, sentence = run(VOLO, '--places', 1)
    assert '3 label maps made, 1 kept' in capsys.readouterr().out and whole.stat() == kept
    assert all(torch.equal(found[name], before[name]) for name in before) and 'three/c.pt' in found
    assert sentence.startswith('1 of 5 images could not be used: ') and 'one/0.jpg cannot' in sentence


def test_refuses_to_mix(run, tmp_path):
    """Label maps of other places, another classifier or unknown origin stay alone in their folder."""
    run(VOLO, '--places', 1)
    for config, arguments, differences in (
        (VOLO, ['--places', 2], 'places'),
        (SWIN, ['--places', 1], 'classifier, checkpoint'),
    ):
        _, found, sentence = run(config, *arguments)
        assert f'were made with other settings ({differences}; see token_labels.json)' in sentence
        assert found['one/a.pt'].shape[2:] == (1, 1)
    (tmp_path / 'out' / 'token_labels.json').unlink()
    assert 'has label maps, but no token_labels.json' in run(VOLO, '--places', 1)[2]


def test_refuses_broken_classifiers(run):
    """A classifier whose logits are not finite would give label maps that end the training."""
    _, found, sentence = run(VOLO, '--places', 1, '--cfg-options', 'data_preprocessor.std=[0,0,0]')
    assert not found and 'one/a.JPEG has logits that are not finite' in sentence
    assert run(VOLO, '--places', 1)[2] is None


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
