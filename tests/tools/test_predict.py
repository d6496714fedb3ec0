"""tools/predict.py as a user calls it, on small models with random weights."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from mmguard.errors import InputError
from mmguard.prediction import predict as predicting
from tests import ROOT
from tests.tools.in_process import run_tool

DETECTOR = 'projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEGMENTOR = 'projects/lab/configs/toy/shunted-toy_fpn.py'
CLASSIFIER = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'
#: random weights give low scores
OPTIONS = {
    DETECTOR: [
        'model.test_cfg.rcnn.score_thr=0.',
        'model.test_cfg.rcnn.max_per_img=10',
        'model.test_cfg.rpn.max_per_img=20',
    ],
    SEGMENTOR: ['model.test_cfg.mode=whole'],
    CLASSIFIER: [],
}


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    """A file of random weights of each model, as small as torch.save makes it: without names of classes."""
    folder = tmp_path_factory.mktemp('weights')
    files = {}
    for config in OPTIONS:
        cfg = Config.fromfile(ROOT / config)
        torch.manual_seed(0)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            torch.save(MODELS.build(cfg.model).state_dict(), folder / f'{len(files)}.pth')
        files[config] = folder / f'{len(files)}.pth'
    return files


def test_refuses_distiller(tmp_path):
    """A model that predicts features has no results to write: a sentence names the tool that draws them."""
    cfg = Config.fromfile(ROOT / 'projects/distillation/configs/toy/graft.py')
    with pytest.raises(InputError, match='--what distillation'):
        predicting.predict(cfg, 'absent.pth', [str(tmp_path)], tmp_path / 'out')


@pytest.fixture
def photos(tmp_path):
    """A folder with images of two sizes, within folders, and a text."""
    random = np.random.default_rng(0)
    for name, size in {'a.png': (64, 80), 'b.jpg': (64, 80), 'in/a.png': (70, 50), 'in/er/c.png': (64, 80)}.items():
        (tmp_path / 'photos' / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / 'photos' / name), random.integers(0, 256, (*size, 3), np.uint8))
    (tmp_path / 'photos' / 'notes.txt').write_text('none')
    return tmp_path / 'photos'


@pytest.fixture
def run(weights, tmp_path):
    """Run the tool; the sentence that ends it, or None, and what it wrote."""

    def run(config, *arguments, options=()):
        out, set_options = tmp_path / 'out', [*OPTIONS[config], *options]
        arguments += ('--cfg-options', *set_options) if set_options else ()
        done = run_tool('predict', config, weights[config], '--out', out, *arguments)
        assert not list(out.rglob('*.part*'))
        contents = out / 'predictions.json'
        return done.sentence, json.loads(contents.read_text()) if contents.exists() else None

    return run


def drawn(tmp_path):
    return sorted(str(file.relative_to(tmp_path / 'out' / 'images')) for file in (tmp_path / 'out').rglob('*.jpg'))


def undrawn(file):
    """An image as a JPEG file in which nothing is drawn."""
    return cv2.imencode('.jpg', cv2.imread(str(file)))[1].tobytes()


def test_detector(run, photos, tmp_path, monkeypatch):
    """Results in COCO's format, which pycocotools reads, of a folder with folders; other files are left out. Nothing is
    drawn of low scores, and if that is all, a line says so."""
    from pycocotools import mask
    from pycocotools.coco import COCO

    warnings = []
    monkeypatch.setattr(predicting, 'warn', warnings.append)
    sentence, found = run(DETECTOR, photos)
    assert sentence is None and drawn(tmp_path) == ['a.jpg', 'b.jpg', 'in/a.jpg', 'in/er/c.jpg']
    assert [image['file_name'] for image in found['images']] == ['a.png', 'b.jpg', 'in/a.png', 'in/er/c.png']
    assert [category['name'] for category in found['categories']][:2] == ['person', 'bicycle']
    coco = COCO()
    coco.dataset = dict(images=found['images'], categories=found['categories'])
    coco.createIndex()
    results = coco.loadRes(found['annotations'])
    (first, *_) = results.loadAnns(results.getAnnIds(imgIds=[3]))
    assert mask.decode(first['segmentation']).shape == (70, 50) and 0 < first['score'] < 1
    assert (tmp_path / 'out' / 'images' / 'in' / 'a.jpg').read_bytes() == undrawn(photos / 'in' / 'a.png')
    best = max(one['score'] for one in found['annotations'])
    assert warnings == [
        f'No object is drawn, which needs a score of 0.3, and the best score is {best:.2f}: set a lower --score-thr.'
    ]


def test_segmentor(run, photos, tmp_path):
    """A label map of each image, of its size, in batches of images of several sizes."""
    sentence, found = run(SEGMENTOR, photos, '--batch-size', 3)
    assert sentence is None and len(drawn(tmp_path)) == 4 and found['categories'][0] == dict(id=0, name='wall')
    for image in found['images']:
        labels = np.array(Image.open(tmp_path / 'out' / image['label_map']))
        assert labels.shape == (image['height'], image['width']) and labels.dtype == np.uint8 and labels.max() < 150


def test_classifier(run, photos, tmp_path):
    """The five best classes of each image; a label is of a whole image, so tiles are refused."""
    sentence, found = run(CLASSIFIER, photos, '--batch-size', 2)
    assert sentence is None and len(drawn(tmp_path)) == 4
    scores = [one['score'] for one in found['annotations'] if one['image_id'] == 2]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)


def test_arrays_of_many_bands(tmp_path):
    """A detector for five bands of 16 bits, whose config reads files of NumPy. Other suffixes in the folder are left
    out; the picture shows three bands."""
    config, folder, out = tmp_path / 'five.py', tmp_path / 'arrays', tmp_path / 'out'
    config.write_text(f"""
_base_ = {str(ROOT / DETECTOR)!r}
read = [
    dict(type='mmguard.LoadImageFromNpyFile', to_float32=True),
    dict(type='Normalize', mean=[2500.0] * 5, std=[1500.0] * 5, to_rgb=False),
]
test_dataloader = dict(dataset=dict(pipeline=read + _base_.test_pipeline[1:]))
model = dict(
    data_preprocessor=dict(_delete_=True, type='DetDataPreprocessor', pad_size_divisor=32),
    backbone=dict(in_channels=5),
)
""")
    cfg = Config.fromfile(config)
    with DefaultScope.overwrite_default_scope('mmdet'):
        torch.save(MODELS.build(cfg.model).state_dict(), tmp_path / 'five.pth')
    folder.mkdir()
    (folder / 'notes.txt').write_text('none')
    for name in 'ab':
        np.save(folder / f'{name}.npy', np.random.default_rng(0).integers(0, 5000, (64, 80, 5), np.uint16))
    done = run_tool('predict', config, tmp_path / 'five.pth', folder, '--out', out, '--cfg-options', *OPTIONS[DETECTOR])
    found = json.loads((out / 'predictions.json').read_text())
    assert done.sentence is None and drawn(tmp_path) == ['a.jpg', 'b.jpg'] and len(found['annotations']) == 20
    assert cv2.imread(str(out / 'images' / 'a.jpg')).std() > 50
    np.save(folder / 'a.npy', np.array([{}]))
    done = run_tool('predict', config, tmp_path / 'five.pth', folder / 'a.npy', '--out', tmp_path / 'other')
    assert 'a.npy cannot be used: ValueError: Object arrays cannot be loaded' in done.sentence


def test_tiles_of_a_small_image_change_nothing(run, photos, tmp_path):
    """An image that one tile holds is predicted as a whole, to the last digit."""
    wholes = run(SEGMENTOR, photos / 'a.png')
    (tmp_path / 'out').rename(tmp_path / 'wholes')
    assert run(SEGMENTOR, photos / 'a.png', '--tile', 80) == wholes
    for file in (tmp_path / 'wholes').rglob('*.*'):
        assert file.read_bytes() == (tmp_path / 'out' / file.relative_to(tmp_path / 'wholes')).read_bytes()


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_tiles(run, photos, tmp_path, config):
    """Tiles in batches give results of the size of the image, in all its parts; a tile is predicted as an image."""
    options = '--tile', 40, '--overlap', 8, '--batch-size', 4, '--score-thr', 0
    sentence, found = run(config, photos / 'a.png', *options)
    assert sentence is None and drawn(tmp_path) == ['a.jpg']
    assert (tmp_path / 'out' / 'images' / 'a.jpg').read_bytes() != undrawn(photos / 'a.png')
    if config == DETECTOR:
        x, y, width, height = np.array([one['bbox'] for one in found['annotations']]).T
        assert 60 < (x + width).max() < 81 and 50 < (y + height).max() < 65
        assert {tuple(one['segmentation']['size']) for one in found['annotations']} == {(64, 80)}
        return
    (tmp_path / 'out').rename(tmp_path / 'joined')
    cv2.imwrite(str(photos / 'last_tile.png'), cv2.imread(str(photos / 'a.png'))[24:, 40:])
    run(config, photos / 'last_tile.png')
    joined, last = (
        np.array(Image.open(tmp_path / file)) for file in ('joined/labels/a.png', 'out/labels/last_tile.png')
    )
    assert joined.shape == (64, 80) and len(np.unique(last)) > 1
    assert (joined[32:, 56:] == last[8:, 16:]).all()  # the part that is farther from the edges of other tiles
    colors = cv2.imread(str(tmp_path / 'out/labels/last_tile.png')).reshape(-1, 3)  # a palette, to be looked at
    assert len(np.unique(colors, axis=0)) == len(np.unique(last))


def test_broken_files(run, photos, tmp_path):
    """They are named at the end, and the others are predicted."""
    whole = (photos / 'b.jpg').read_bytes()
    (photos / 'b.jpg').write_bytes(whole[: len(whole) // 2])
    cv2.imwrite(str(photos / 'thinner.png'), np.zeros((1, 3000, 3), np.uint8))  # of one batch with the other
    (photos / 'empty.png').touch()
    (photos / 'text.png').write_text('no image')
    cv2.imwrite(str(photos / 'thin.png'), np.zeros((1, 3000, 3), np.uint8))  # the pipeline makes it 0 pixels high
    sentence, found = run(SEGMENTOR, photos, '--batch-size', 4)
    assert sentence.startswith('5 of 8 files could not be used')
    assert all(str(photos / name) in sentence for name in ('b.jpg', 'empty.png', 'text.png'))
    assert 'thin.png: ' in sentence and 'thinner.png: ' in sentence
    assert len(found['images']) == 3 and len(drawn(tmp_path)) == 3


def test_names(run, photos, tmp_path):
    """Images of one name do not overwrite each other: from two folders, with two suffixes, and frames of a video."""
    (photos / 'a.jpg').write_bytes((photos / 'b.jpg').read_bytes())
    sentence, _ = run(SEGMENTOR, photos / 'a.png', photos / 'in' / 'a.png', f'{photos}/*.jpg')
    assert sentence is None
    assert drawn(tmp_path) == ['a.jpg.jpg', 'a.png.jpg', 'b.jpg.jpg', 'in/a.png.jpg']
    assert (tmp_path / 'out' / 'labels' / 'in' / 'a.png.png').is_file()


@pytest.fixture
def film(tmp_path):
    """A video of five frames."""
    writer = cv2.VideoWriter(str(tmp_path / 'film.avi'), cv2.VideoWriter_fourcc(*'MJPG'), 10, (64, 48))
    for shade in range(0, 250, 50):
        writer.write(np.full((48, 64, 3), shade, np.uint8))
    writer.release()
    return tmp_path / 'film.avi'


def test_video(run, film, tmp_path):
    """Frames are numbered, and drawn ones make a video. A video that cannot be opened and a broken link are named."""
    (tmp_path / 'broken.mp4').write_bytes(b'no video')
    (tmp_path / 'link.mp4').symlink_to('absent.mp4')
    sentence, found = run(CLASSIFIER, tmp_path, '--batch-size', 3)
    assert sentence.startswith('2 of 3 files could not be used') and 'broken.mp4' in sentence and 'link.mp4' in sentence
    assert [image['file_name'] for image in found['images']] == [f'film_{number:06d}.jpg' for number in range(1, 6)]
    drawn_film = cv2.VideoCapture(str(tmp_path / 'out' / 'images' / 'film.mp4'))
    assert (drawn_film.get(cv2.CAP_PROP_FRAME_COUNT), drawn_film.get(cv2.CAP_PROP_FPS)) == (5, 10)


def test_no_images(run, film, photos, tmp_path):
    """The predictions and label maps are the same, and nothing is drawn of images and videos."""
    wholes = run(SEGMENTOR, film, photos / 'a.png')
    assert drawn(tmp_path)
    (tmp_path / 'out').rename(tmp_path / 'wholes')
    assert run(SEGMENTOR, film, photos / 'a.png', '--no-images') == wholes
    files = {file.relative_to(tmp_path / 'out') for file in (tmp_path / 'out').rglob('*')}
    assert files == {
        path
        for file in (tmp_path / 'wholes').rglob('*')
        if (path := file.relative_to(tmp_path / 'wholes')).parts[0] != 'images'
    }


@pytest.mark.parametrize('count, complete', [(7, True), (8, False)])
def test_frames_that_a_video_does_not_have(run, film, monkeypatch, count, complete):
    """Two may be missing, as encoders count a few too many; a video that is cut short is named."""
    monkeypatch.setattr(predicting.VideoReader, 'frame_cnt', count)
    sentence, found = run(CLASSIFIER, film)
    assert len(found['images']) == 5
    assert sentence is None if complete else 'film.avi ends after 5 of 8 frames' in sentence


def test_interrupted(run, film, monkeypatch, tmp_path):
    """Ctrl-C leaves whole files only, without predictions.json, and says so."""

    def frames2video(frames, video, *_, **__):
        open(video, 'w').close()
        raise KeyboardInterrupt

    monkeypatch.setattr(predicting, 'frames2video', frames2video)
    sentence, found = run(CLASSIFIER, film)
    assert sentence.startswith('Interrupted') and found is None
    assert len(drawn(tmp_path)) == 5 and not list((tmp_path / 'out').rglob('*.mp4'))


def test_longer_than_a_jpeg(run, tmp_path):
    """A drawn image with a side of more than 65535 pixels, which JPEG cannot have, is a PNG file."""
    cv2.imwrite(str(tmp_path / 'long.png'), np.zeros((8, 65536, 3), np.uint8))
    sentence, _ = run(CLASSIFIER, tmp_path / 'long.png')
    assert sentence is None and not drawn(tmp_path)
    assert cv2.imread(str(tmp_path / 'out' / 'images' / 'long.png')).shape == (8, 65536, 3)


def test_broken_file_of_category_ids(tmp_path):
    """Other ids than the file's would be written without a word."""
    (tmp_path / 'a.json').write_text('{"categories": [{"id": 1}]}')
    with pytest.raises(InputError, match='a.json, which the config names for the ids of the classes, cannot be read'):
        predicting._category_ids(SimpleNamespace(ann_file=str(tmp_path / 'a.json')), ['cat'])


def test_category_ids(run, photos, tmp_path):
    """They are those of the annotation file, if it is there."""
    from mmdet.datasets import CocoDataset

    categories = [dict(id=1000 - number, name=name) for number, name in enumerate(CocoDataset.METAINFO['classes'])]
    (tmp_path / 'ann.json').write_text(json.dumps(dict(images=[], annotations=[], categories=categories)))
    _, found = run(DETECTOR, photos / 'a.png', options=[f'test_dataloader.dataset.ann_file={tmp_path}/ann.json'])
    assert found['categories'] == categories
    assert {one['category_id'] for one in found['annotations']} <= set(range(921, 1001))


def test_forms_of_images(run, tmp_path):
    """Grey, palette, transparent and 16-bit images, and a JPEG that is turned by its EXIF orientation."""
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    for mode in ('L', 'P', 'RGBA', '1', 'I;16'):
        image = Image.new(mode, (60, 40), 1000) if mode == 'I;16' else rgb.convert(mode)
        image.save(tmp_path / f'{mode.replace(";", "")}.png')
    exif = Image.Exif()
    exif[0x0112] = 6
    rgb.save(tmp_path / 'turned.jpg', exif=exif)
    sentence, found = run(SEGMENTOR, tmp_path)
    assert sentence is None and len(found['images']) == 6
    for image in found['images']:
        turned = image['file_name'] == 'turned.jpg'
        assert (image['height'], image['width']) == ((60, 40) if turned else (40, 60))
        for file in ('labels/{}.png', 'images/{}.jpg'):
            path = tmp_path / 'out' / file.format(image['file_name'].split('.')[0])
            assert cv2.imread(str(path)).shape[:2] == (image['height'], image['width'])


@pytest.mark.parametrize(
    'config, arguments, message',
    [
        (CLASSIFIER, ['--tile', 32], '--tile is for detectors and segmentors'),
        (DETECTOR, ['--device', 'nonsense'], '--device nonsense cannot be used here'),
    ],
)
def test_mistakes_get_a_sentence(run, photos, config, arguments, message):
    sentence, found = run(config, photos / 'a.png', *arguments)
    assert message in sentence and found is None


def test_default_overlap(tmp_path, monkeypatch):
    """Without an overlap, objects at the seams would stay in parts."""
    given = {}
    monkeypatch.setattr(predicting, 'predict', lambda *_, **options: given.update(options))
    assert run_tool('predict', DETECTOR, 'a.pth', 'a.png', '--out', tmp_path, '--tile', 40).sentence is None
    assert given['overlap'] == 5


def test_results_are_not_mixed(run, photos, tmp_path):
    """A folder that has something in it is left as it is."""
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'predictions.json').write_text('{"kept": 1}')
    sentence, kept = run(CLASSIFIER, photos)
    assert 'is not an empty folder' in sentence and kept == dict(kept=1)
