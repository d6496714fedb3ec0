"""tools/probe.py: a table and pictures for each kind of data, and a sentence for what cannot be probed."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from tests import ROOT
from tests.own_data.makers import class_folders, coco, label_maps
from tests.tools.in_process import load_tool, run_tool

TOY = ROOT / 'projects/lab/configs/toy'
NAMES = 'shunted-toy_fpn', 'elsa-swin-toy_upernet'
CONFIGS = [str(TOY / f'{name}.py') for name in NAMES]
#: kind -> what makes it, and the score that even random weights reach: a square's colour is its class
KINDS = {
    'boxes': (lambda f: coco(f / 'a.json', f / 'images', 20, masks=False), 'mean recall', 60),
    'maps': (lambda f: label_maps(f / 'images', f / 'labels', 20), 'mIoU', 60),
    'folders': (lambda f: class_folders(f, 10), 'top-1', 60),
}


@pytest.mark.parametrize('kind', KINDS)
def test_table_and_pictures(kind, tmp_path):
    """Each backbone gets a row, best first, with a score above that of the most frequent class, and a part of each
    picture. The data is not changed, and embeddings are of all images."""
    make, score, least = KINDS[kind]
    make(tmp_path / 'own')
    files = sorted((tmp_path / 'own').rglob('*'))
    out = tmp_path / 'out'
    options = '--size', 64, '--steps', 100, '--save-embeddings'
    done = run_tool('probe', tmp_path / 'own', '--backbones', *CONFIGS, '--out', out, *options)
    assert done.returncode == 0, done.stderr
    table = (out / 'probe.md').read_text()
    rows = re.findall(r'^\| ([\w-]+) \| (.*?) \| ([\d.]+) M \| \d+ ms \| ([\d.]+) \|$', table, re.MULTILINE)
    assert score in table and {row[:2] for row in rows} == {(name, '**random weights**') for name in NAMES}
    scores = [float(row[3]) for row in rows]
    constant = float(re.search(r'most frequent class alone has (\d+\.\d)', table)[1])
    assert scores == sorted(scores, reverse=True) and scores[-1] > max(constant + 10, least)
    assert sorted((tmp_path / 'own').rglob('*')) == files
    pictures = sorted(out.glob('image_*.jpg'))
    width = cv2.imread(str(pictures[0])).shape[1] / (85 + 6)
    assert 1 <= len(pictures) <= 4 and round(width) == (6 if kind == 'maps' else 3)
    (saved,) = out.glob('*elsa*.npz')
    arrays = np.load(saved)
    assert len({*arrays['train_images'], *arrays['val_images']}) == (30 if kind == 'folders' else 20)
    assert arrays['train_embeddings'].shape[0] == len(arrays['train_images'])


@pytest.mark.parametrize('to_rgb', [True, False])
@pytest.mark.parametrize('config', CONFIGS)
def test_pixels(config, to_rgb, tmp_path):
    """A backbone gets the pixels of its own training: RGB or BGR, and each channel less its own mean."""
    tool, cfg = load_tool('probe'), Config.fromfile(config)
    cfg.model.data_preprocessor.update(mean=[100.0, 110, 120], std=[1.0, 2, 4], bgr_to_rgb=to_rgb)
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    preprocessor = tool.preprocessor_of(cfg)
    expected = preprocessor(dict(inputs=[torch.from_numpy(image).permute(2, 0, 1)], data_samples=[]))['inputs']
    found = tool.read_image(tmp_path / 'a.png', 64, tool.pixels_of(cfg, preprocessor))
    torch.testing.assert_close(found, expected[..., :64, :64])


def test_weights(tmp_path):
    """A checkpoint is loaded and named, a name without weights that are there is said to be random."""
    class_folders(tmp_path / 'own', 3)
    torch.save(MODELS.build(Config.fromfile(CONFIGS[0]).model.backbone).state_dict(), tmp_path / 'w.pth')
    backbones = [f'{CONFIGS[0]}={tmp_path / "w.pth"}', 'shunted-t', 'nat-m=none']
    done = run_tool('probe', tmp_path / 'own', '--backbones', *backbones, '--out', tmp_path / 'out', '--size', 64)
    assert done.returncode == 0, done.stderr
    table = Path(tmp_path / 'out' / 'probe.md').read_text()
    assert '| shunted-toy_fpn | w.pth |' in table
    assert '| shunted-t | **random weights** |' in table and '| nat-m | **random weights** |' in table
    assert 'shunted-t has random weights: there is no checkpoint checkpoints/ckpt_T.pth' in done.stdout


def test_refusals(tmp_path):
    """One sentence, and nothing is written."""
    class_folders(tmp_path / 'own', 3)
    (tmp_path / 'empty').mkdir()
    for part in ('train', 'val'):
        coco(tmp_path / 'parts' / f'{part}.json', tmp_path / 'parts' / part)
    contents = json.loads((tmp_path / 'parts' / 'val.json').read_text())
    contents['categories'].reverse()
    (tmp_path / 'parts' / 'val.json').write_text(json.dumps(contents))
    for data, backbone, sentence in (
        ('empty', 'nat-t', 'has nothing, and not what was looked for: .*COCO.*; or .*labels.*; or .*each'),
        ('missing', 'nat-t', 'there is no folder'),
        ('parts', 'nat-t', 'val.json has its categories in another order than .*train.json'),
        ('own', 'nat-x', "no config of classifier with 'nat-x'"),
        ('own', 'nat-t=missing.pth', 'no checkpoint missing.pth'),
        ('own', 'missing.py', 'missing.py cannot be read'),
    ):
        done = run_tool('probe', tmp_path / data, '--backbones', backbone, '--out', tmp_path / 'out')
        assert re.search(sentence, done.sentence), done.sentence
        assert not (tmp_path / 'out').exists()
