"""tools/make_token_labels.py as a user calls it, on small classifiers with random weights."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from tests import ROOT
from tests.tools.in_process import load_tool, run_tool

pytest.importorskip('mmpretrain')

SWIN, VOLO = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py', 'projects/lab/configs/toy/elsa-volo-toy_in1k.py'


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(0)
    for name in ('one/a.JPEG', 'one/b.png', 'two/a.jpg'):
        path = tmp_path / 'images' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), random.integers(0, 256, (50, 70, 3), np.uint8))
    return tmp_path / 'images'


@pytest.fixture
def run(tmp_path, images):
    """Run the tool on a new model; the model, the label maps by name, and what the tool gives."""

    def run(config, *arguments):
        cfg = Config.fromfile(ROOT / config)
        torch.manual_seed(0)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            model = MODELS.build({**cfg.model, 'data_preprocessor': cfg.get('data_preprocessor')})
        torch.save(model.state_dict(), tmp_path / 'weights.pth')
        out = tmp_path / 'out'
        options = ['--images', images, '--out', out, '--workers', 0, '--device', 'cpu']
        done = run_tool('make_token_labels', config, tmp_path / 'weights.pth', *options, *arguments)
        assert not list(out.rglob('*.unfinished'))
        found = {str(file.relative_to(out)): torch.load(file, weights_only=True) for file in out.rglob('*.pt')}
        return model.eval(), found, done

    return run


@pytest.mark.parametrize('config, stride', [(SWIN, 32), (VOLO, 16)])
def test_label_maps(run, images, config, stride):
    """The five best classes of each place: those that the head sees in the part of the map, in plain loops."""
    model, found, done = run(config, '--places', 3)
    assert done.sentence is None and set(found) == {'one/a.pt', 'one/b.pt', 'two/a.pt'}
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


@pytest.mark.parametrize('stride', [4, 14, 16, 32])
def test_strides(stride):
    """The tool, and the names of the outputs of an exported file, say the stride of a map, also of patches of 14."""
    pool = nn.AvgPool2d(stride, ceil_mode=True)
    model = nn.Conv2d(3, 3, 1)
    model.extract_feat = lambda x, stage: [pool(x)]
    assert load_tool('make_token_labels').stride(model, 3) == stride
    assert load_tool('export').output_names(lambda x: [pool(x)], 3) == [f'map0_stride{stride}']


def test_the_pipeline_normalises(run, tmp_path, images):
    """Label maps are the same whether the pipeline or the data preprocessor normalises; images of more than 8 bits,
    which Pillow cannot resize, are named."""
    _, expected, _ = run(SWIN, '--places', 1)
    (tmp_path / 'out').rename(tmp_path / 'expected')
    (tmp_path / 'c.py').write_text(f"""
_base_ = {str(ROOT / SWIN)!r}
norm = dict(type='Normalize', mean=_base_.data_preprocessor.mean, std=_base_.data_preprocessor.std, to_rgb=True)
load = dict(type='LoadImageFromFile', color_type='unchanged')
test_dataloader = dict(dataset=dict(pipeline=[load, norm, *_base_.test_pipeline[1:]]))
data_preprocessor = dict(_delete_=True, num_classes={Config.fromfile(ROOT / SWIN).data_preprocessor.num_classes})
""")
    cv2.imwrite(str(images / 'one' / 'deep.png'), np.full((50, 70, 3), 4000, np.uint16))
    _, found, done = run(tmp_path / 'c.py', '--places', 1)
    assert done.sentence.startswith('1 of 4 images') and 'deep.png has values of more than 8 bits' in done.sentence
    for name, label_map in expected.items():
        torch.testing.assert_close(found[name], label_map)


def test_continues(run, tmp_path, images):
    """Whole label maps stay, damaged ones are made again, and a damaged image is named after the others are done."""
    _, before, done = run(VOLO, '--places', 1)
    assert '3 label maps made, 0 kept' in done.stdout
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
    _, found, done = run(VOLO, '--places', 1)
    assert '3 label maps made, 1 kept' in done.stdout and whole.stat() == kept
    assert all(torch.equal(found[name], before[name]) for name in before) and 'three/c.pt' in found
    assert done.sentence.startswith('1 of 5 images could not be used: ') and 'one/0.jpg cannot' in done.sentence


def test_refuses_to_mix(run, tmp_path):
    """Label maps of other places, another classifier or unknown origin stay alone in their folder."""
    run(VOLO, '--places', 1)
    for config, arguments, differences in (
        (VOLO, ['--places', 2], 'places'),
        (SWIN, ['--places', 1], 'classifier, checkpoint'),
    ):
        _, found, done = run(config, *arguments)
        assert f'were made with other settings ({differences}; see token_labels.json)' in done.sentence
        assert found['one/a.pt'].shape[2:] == (1, 1)
    (tmp_path / 'out' / 'token_labels.json').unlink()
    assert 'has label maps, but no token_labels.json' in run(VOLO, '--places', 1)[2].sentence


def test_refuses_broken_classifiers(run):
    """A classifier whose logits are not finite would give label maps that end the training."""
    _, found, done = run(VOLO, '--places', 1, '--cfg-options', 'data_preprocessor.std=[0,0,0]')
    assert not found and 'one/a.JPEG has logits that are not finite' in done.sentence
    assert run(VOLO, '--places', 1)[2].sentence is None


def test_refuses(run, tmp_path, images):
    """Before anything is made: also two images whose label maps would be one file."""
    model = "dict(_delete_=True, type='TimmClassifier', model_name='resnet18', num_classes=9)"
    (tmp_path / 'timm.py').write_text(f"_base_ = '{ROOT / SWIN}'\nmodel = {model}")
    (images / 'one' / 'a.png').write_bytes((images / 'one' / 'b.png').read_bytes())
    for config, sentence in (
        ('projects/lab/configs/toy/shunted-toy_fpn.py', 'is not a config of a classifier.'),
        (VOLO, 'images with the same folder and name'),
    ):
        _, found, done = run(config)
        assert not found and sentence in done.sentence
    (images / 'one' / 'a.png').unlink()
    _, found, done = run(tmp_path / 'timm.py')
    assert not found and done.sentence.endswith('the setting "backbone", not a TimmClassifier')


@pytest.mark.parametrize('classes, dtype', [(2048, torch.float16), (2050, torch.float32)])
def test_numbers_of_many_classes(classes, dtype):
    """float16 has no odd numbers above 2048, so label maps of more classes are float32: each class stays itself."""
    tool = load_tool('make_token_labels')
    logits = torch.zeros(1, classes, 1, 1)
    logits[0, -1] = 9
    model = SimpleNamespace(
        data_preprocessor=lambda data: data,
        extract_feat=lambda x, stage: x,
        head=SimpleNamespace(dense_logits=lambda feats: (None, logits)),
    )
    maps = tool.label_maps(model, [])
    assert maps.dtype == dtype and maps[0, 1, 0, 0, 0] == classes - 1
