"""What is checked before the first step and as samples are read."""

import copy
import json

import numpy as np
import pytest
from mmengine.dataset import BaseDataset, Compose, ConcatDataset, RepeatDataset
from PIL import Image

from mmattn.engine.datasets import CheckedPipeline, check_coco, check_coco_files, check_picture, leaves
from mmattn.errors import InputError

COCO = dict(
    images=[dict(id=7, file_name='a.jpg', width=20, height=10)],
    categories=[dict(id=3, name='cat'), dict(id=5, name='dog')],
    annotations=[
        dict(id=1, image_id=7, category_id=5, iscrowd=0, area=12, bbox=[1, 2, 3, 4], segmentation=[[1, 2, 4, 2, 4, 6]])
    ],
)


def changed(kind, **values):
    contents = copy.deepcopy(COCO)
    contents[kind][0].update(values)
    return contents


@pytest.mark.parametrize(
    'contents, message',
    [
        ({}, 'no list "images"'),
        ({**COCO, 'categories': {}}, 'no list "categories"'),
        ({**COCO, 'images': [3]}, 'entry 0 of "images" has no id, file_name, width, height'),
        ({**COCO, 'annotations': [dict(id=1, image_id=7)]}, 'entry 0 of "annotations" has no category_id, bbox, area'),
        (changed('annotations', image_id=8), 'annotation 1 is of image 8'),
        (changed('annotations', category_id=4), 'annotation 1 is of category 4'),
        (changed('annotations', bbox=[1, 2, 3]), 'should be four numbers'),
        (changed('annotations', bbox='1 2 3 4'), 'should be four numbers'),
        (changed('annotations', bbox=[1, 2, 3, float('nan')]), 'should be four numbers'),
        (changed('annotations', bbox=[9, 9, -3, 4]), 'of negative size'),
        (changed('annotations', bbox=[20, 2, 3, 4]), 'outside of its picture of 20 x 10'),
        (changed('annotations', bbox=[-9, 2, 3, 4]), 'outside of its picture of 20 x 10'),
    ],
)
def test_annotations_that_do_not_fit(contents, message):
    """MMDetection leaves such boxes out without a word, or fails without the file's name."""
    with pytest.raises(InputError, match=message):
        check_coco(contents, 'file.json')


@pytest.mark.parametrize(
    'contents, words',
    [
        (COCO, 0),
        ({**COCO, 'annotations': []}, 0),
        ({k: v for k, v in COCO.items() if k != 'annotations'}, 0),
        (changed('annotations', bbox=[1, 2, 3, 0]), 0),
        (changed('annotations', bbox=[17, 2, 9, 4]), 1),
    ],
)
def test_annotations_that_do(contents, words, log):
    """COCO itself has boxes without a height; one that reaches out of its picture gets a word in the log."""
    check_coco(contents, 'file.json')
    assert len([message for message in log if 'boxes reach out' in message]) == words


@pytest.mark.parametrize(
    'classes, message',
    [
        (('cat', 'dog'), None),
        (('dog',), None),
        (('cat', 'cow'), 'has no category cow'),
        (('dog', 'cat'), 'another order'),
    ],
)
def test_classes(tmp_path, classes, message):
    """MMDetection would shift the numbers of all classes after one that is not in the file."""
    from mmdet.datasets import CocoDataset

    check_coco_files()
    (tmp_path / 'a.json').write_text(json.dumps(COCO))
    settings = dict(
        ann_file=str(tmp_path / 'a.json'), metainfo=dict(classes=classes), pipeline=[], data_prefix=dict(img='')
    )
    if message is None:
        assert CocoDataset(**settings)[0]['instances'][0]['bbox_label'] == classes.index('dog')
    else:
        with pytest.raises(InputError, match=message):
            CocoDataset(**settings)


class Pictures(BaseDataset):
    def load_data_list(self):
        return [dict(img_path='a.jpg')]


def test_leaves():
    """Datasets are found below whatever wraps them."""
    a, b = Pictures(serialize_data=False), Pictures(serialize_data=False)
    assert list(leaves(ConcatDataset([a, b]))) == [a, b] and list(leaves(RepeatDataset(b, 2))) == [b]
    assert list(leaves(None)) == []


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_pictures_cut_short(tmp_path, suffix):
    """OpenCV makes a grey rest of them; what follows a whole picture is nobody's business."""
    path = tmp_path / f'a.{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    for contents in (whole, whole + b'more' * 100):
        path.write_bytes(contents)
        check_picture(str(path))
    for share in (0.3, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError, match=f'a.{suffix} cannot be used: the picture is cut short'):
            check_picture(str(path))


def test_errors_name_the_picture():
    """Of any transform, its kind and the picture."""

    def broken(data):
        raise RuntimeError('too small')

    dataset = Pictures(serialize_data=False, metainfo=dict(classes=('a',)))
    pipeline = CheckedPipeline(Compose([lambda data: data, broken]), dataset)
    with pytest.raises(InputError, match='a.jpg cannot be used: RuntimeError: too small, in function'):
        pipeline(dict(img_path='a.jpg'))
