"""tools/browse.py, in this process."""

import shutil
from pathlib import Path

import pytest

from tests.tools.in_process import run_tool

DETECTOR = 'configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEGMENTOR = 'configs/toy/shunted-toy_fpn.py'
CLASSIFIER = 'configs/toy/elsa-swin-toy_in1k.py'


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    root = tmp_path_factory.mktemp('browse') / 'toy'
    assert run_tool('dev/make_toy_data', root, '--train', 3, '--val', 2).returncode == 0
    return root


@pytest.fixture
def browse(toy, tmp_path):
    """A function that runs the tool on the toy data, or on a copy of it."""

    def run(config, *arguments, data=toy):
        folders = dict(COCO_ROOT='coco', ADE20K_ROOT='ADEChallengeData2016', IMAGENET_ROOT='imagenet')
        environment = {name: str(data / folder) for name, folder in folders.items()}
        return run_tool('browse', config, '--out', tmp_path / 'look', *arguments, **environment)

    return run


def counts(printed: str) -> dict[str, tuple[int, int]]:
    """Class name -> number of objects or pixels, number of images. Classes without any are left out."""
    rows = [line.split() for line in printed.splitlines() if ' in ' in line and line.rstrip().endswith('images')]
    return {row[1]: (int(row[-5]), int(row[-2])) for row in rows if int(row[-5])}


def test_detector(browse, toy, tmp_path):
    """Images are drawn, and the objects of each class counted. A class without objects has a line too."""
    done = browse(DETECTOR, '--draw', 2)
    found = counts(done.stdout)
    assert set(found) <= {'frisbee', 'kite', 'book', 'donut', 'scissors'}
    from pycocotools.coco import COCO

    annotated = COCO(toy / 'coco' / 'annotations' / 'instances_train2017.json')
    assert sum(number for number, _ in found.values()) == len(annotated.anns)
    assert len(list((tmp_path / 'look').glob('train_*.jpg'))) == 2
    assert done.sentence is None and ' person ' in done.stdout


def test_segmentor(browse, toy, tmp_path):
    """The validation images are drawn whole, and enlarged to be read, and the pixels of each class counted."""
    done = browse(SEGMENTOR, '--split', 'val')
    found = counts(done.stdout)
    assert done.sentence is None and found['sky'][1] == found['grass'][1] == 2
    files = sorted((tmp_path / 'look').glob('val_*.jpg'))
    assert len(files) == 2
    import cv2

    original = toy / 'ADEChallengeData2016' / 'images' / 'validation' / '000000000001.jpg'
    drawn, image = cv2.imread(str(files[0])), cv2.imread(str(original))
    assert drawn.shape[0] == 3 * image.shape[0] and drawn.shape[1] == 3 * image.shape[1]


def test_classifier(browse, toy, tmp_path):
    """The images are drawn with their classes, and the images of each class counted."""
    done = browse(CLASSIFIER, '--split', 'val', '--draw', 3)
    assert done.sentence is None
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith(' images')][1:]
    per_folder = [len(list(folder.iterdir())) for folder in sorted((toy / 'imagenet' / 'val').iterdir())]
    assert [int(row[-2]) for row in rows] == per_folder + [0] * (1000 - len(per_folder))
    assert len(list((tmp_path / 'look').glob('val_*.jpg'))) == 3


def test_label_that_is_no_class(browse):
    """One sentence for all label maps says what to set, with their number; the pixels of the label are counted."""
    dataset = 'train_dataloader.dataset'
    options = f'{dataset}.type=BaseSegDataset', f'{dataset}.metainfo.classes=[a,b]', 'model.decode_head.num_classes=2'
    done = browse(SEGMENTOR, '--cfg-options', *options)
    assert done.sentence == '3 of 3 images cannot be used.'
    sentences = [line for line in done.stderr.splitlines() if 'where the dataset has 2 classes' in line]
    assert sum(int(line.split()[0]) for line in sentences) == 3
    assert all('set ignore_index=' in line for line in sentences)
    assert ' is no class ' in done.stdout


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_all_broken_images_are_named(config, browse, toy, tmp_path):
    """A broken image does not stop the tool: all are named, and the tool ends with an error."""
    shutil.copytree(toy, tmp_path / 'toy')
    folder = 'coco/train2017' if config == DETECTOR else 'ADEChallengeData2016/images/training'
    for number in (1, 3):
        Path(tmp_path / 'toy' / folder / f'{number:012d}.jpg').write_bytes(b'')
    done = browse(config, data=tmp_path / 'toy')
    assert done.sentence == '2 of 3 images cannot be used.'
    assert all(f'{number:012d}.jpg cannot be used' in done.stderr for number in (1, 3))
    assert [file.name for file in (tmp_path / 'look').iterdir()] == ['train_000001_000000000002.jpg']
