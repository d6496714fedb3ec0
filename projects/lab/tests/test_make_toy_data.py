import json

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from tests.tools.in_process import run_tool


def make(root, *arguments):
    return run_tool('make_toy_data', root, *arguments)


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    root = tmp_path_factory.mktemp('toy') / 'data'
    assert make(root, '--train', '6', '--val', '3').returncode == 0
    return root


def test_masks_are_exact_and_agree(toy):
    """COCO's masks and ADE20K's class map mark the same pixels. Boxes and areas are those of the masks."""
    coco = COCO(toy / 'coco' / 'annotations' / 'instances_train2017.json')
    assert len(coco.imgs) == 6 and len(coco.cats) == 80
    for image in coco.imgs.values():
        pixels = cv2.imread(str(toy / 'coco' / 'train2017' / image['file_name']))
        labels = cv2.imread(
            str(toy / 'ADEChallengeData2016' / 'annotations' / 'training' / image['file_name'].replace('jpg', 'png')),
            cv2.IMREAD_UNCHANGED,
        )
        assert pixels.shape[:2] == labels.shape == (image['height'], image['width'])
        annotations = coco.imgToAnns[image['id']]
        masks = np.array([coco.annToMask(a) for a in annotations])
        assert (masks.sum(0) <= 1).all()
        assert ((masks.sum(0) == 1) == ~np.isin(labels, (3, 10))).all()
        for annotation, mask in zip(annotations, masks):
            assert annotation['area'] == mask.sum() >= 40 and len(np.unique(labels[mask == 1])) == 1
            ys, xs = mask.nonzero()
            assert annotation['bbox'] == [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1]


def test_names_are_the_real_sets(toy):
    """The categories have COCO's names and order. The ADE20K class numbers have the names that the tool says."""
    from mmdet.datasets import CocoDataset
    from mmseg.datasets import ADE20KDataset

    contents = json.loads((toy / 'coco' / 'annotations' / 'instances_val2017.json').read_text())
    assert tuple(c['name'] for c in contents['categories']) == CocoDataset.METAINFO['classes']
    assert [c['id'] for c in contents['categories']][-1] == 90
    names = ADE20KDataset.METAINFO['classes']
    assert [names[n - 1] for n in (120, 150, 68, 144, 140, 3, 10)] == [
        'ball',
        'flag',
        'book',
        'monitor',
        'fan',
        'sky',
        'grass',
    ]


@pytest.mark.parametrize('split, count', [('train', 30), ('val', 15)])
def test_imagenet_has_a_list_of_labels(toy, split, count):
    """ImageNet has 5 images for each image of COCO, listed with the label of their folder: 20 classes, with the same
    labels in both splits."""
    root = toy / 'imagenet'
    listed = dict(line.split() for line in (root / 'meta' / f'{split}.txt').read_text().splitlines())
    files = {file.relative_to(root / split).as_posix() for file in (root / split).glob('*/*.JPEG')}
    assert set(listed) == files and len(files) == count
    first = ['disk-plain', 'disk-stripes', 'disk-checks', 'disk-dots', 'triangle-plain']
    for number, name in enumerate(first):
        assert {label for file, label in listed.items() if file.startswith(f'{name}/')} == {str(number)}
    assert {listed[file] for file in files} == {str(label) for label in range(min(count, 20))}
    assert all(cv2.imread(str(root / split / file)) is not None for file in files)


def test_seeded(toy, tmp_path):
    """The same seed draws the same images, for any number of them. Another seed draws other images."""
    assert make(tmp_path / 'same', '--train', '2', '--val', '1').returncode == 0
    assert make(tmp_path / 'other', '--train', '2', '--val', '1', '--seed', '1').returncode == 0
    for file in ('coco/train2017/000000000002.jpg', 'imagenet/train/disk-stripes/00000002.JPEG'):
        assert (toy / file).read_bytes() == (tmp_path / 'same' / file).read_bytes()
        assert (toy / file).read_bytes() != (tmp_path / 'other' / file).read_bytes()


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (['{toy}'], 'exists already'),
        (['{new}', '--train', '0'], '--train must be 1 or more, not 0'),
        (['{toy}/imagenet/meta/val.txt/new'], 'cannot be written'),
    ],
)
def test_refused(toy, tmp_path, arguments, sentence):
    """Nothing is overwritten, and nothing is left behind."""
    done = make(*(argument.format(toy=toy, new=tmp_path / 'new') for argument in arguments))
    assert done.returncode == 1 and sentence in done.sentence and not list(tmp_path.iterdir())
