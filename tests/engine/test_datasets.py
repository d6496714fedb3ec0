"""Data is checked before a run, before its first step and when it is read."""

import copy
import json

import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose, ConcatDataset, RepeatDataset
from PIL import Image

from mmattn.engine.coco import CheckedCocoDataset, check_coco
from mmattn.engine.datasets import CheckedPipeline, check_files, check_image, inner_datasets, use_checked_datasets
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
        (changed('annotations', bbox=[20, 2, 3, 4]), 'outside of its image of 20 x 10'),
        (changed('annotations', bbox=[-9, 2, 3, 4]), 'outside of its image of 20 x 10'),
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
    """COCO itself has boxes of no height. Boxes that reach out of their image are counted in the log."""
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
    dataset = coco_config(tmp_path, metainfo=dict(classes=classes))
    if message is None:
        assert CheckedCocoDataset(**dataset)[0]['instances'][0]['bbox_label'] == classes.index('dog')
    else:
        with pytest.raises(InputError, match=message):
            CheckedCocoDataset(**dataset)


def coco_config(folder, **settings):
    (folder / 'a.json').write_text(json.dumps(COCO))
    (folder / 'images').mkdir(exist_ok=True)
    settings = {'metainfo': dict(classes=('cat', 'dog')), **settings}
    return dict(data_root=str(folder), ann_file='a.json', pipeline=[], data_prefix=dict(img='images/'), **settings)


def test_the_checked_dataset_is_mmdetections(tmp_path):
    """Samples and metainfo are those of CocoDataset, which is itself not changed."""
    checked, plain = (cls(**coco_config(tmp_path)) for cls in (CheckedCocoDataset, CocoDataset))
    assert checked[0] == plain[0] and checked.metainfo == plain.metainfo and len(checked) == len(plain) == 1
    assert CocoDataset.COCOAPI.__module__.startswith('mmdet')


def test_no_image_is_left(tmp_path):
    """MMDetection would raise "need at least one array to concatenate"."""
    with pytest.raises(InputError, match='a.json has no image to learn from'):
        CheckedCocoDataset(**coco_config(tmp_path, filter_cfg=dict(min_size=99)))


@pytest.mark.parametrize('kind', ['CocoDataset', 'mmdet.CocoDataset', CocoDataset])
def test_coco_datasets_are_checked(tmp_path, kind):
    """The datasets of a config are replaced, however deep they stand, and the registry finds the new type."""
    plain, other = dict(type=kind, **coco_config(tmp_path)), dict(type='LVISV1Dataset')
    wrapped = dict(type='RepeatDataset', times=2, dataset=dict(type='ConcatDataset', datasets=[plain, other]))
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=wrapped), val_dataloader=None))
    use_checked_datasets(cfg)
    first, second = cfg.train_dataloader.dataset.dataset.datasets
    assert type(DATASETS.build(first)) is CheckedCocoDataset and second.type == 'LVISV1Dataset'


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(type='CocoDataset'), None),
        (dict(type='CocoDataset', ann_file='b.json'), 'there is no annotation file .*/b.json: set data_root'),
        (dict(type='CocoDataset', data_prefix=dict(img='no')), 'there is no image folder .*/no: set data_root'),
        (dict(type='CocoDataset', ann_file='b.json', backend_args=dict(backend='petrel')), None),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='images')), 'images has no image'),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='no')), 'there is no image folder'),
        (dict(type='mmseg.ADE20KDataset', metainfo=dict(classes=('cow',))), 'new classes .* is not a subset'),
    ],
)
def test_files_are_there(tmp_path, settings, message):
    """Missing files are named before anything is read, of those dataloaders that the run uses."""
    settings = {'metainfo': None, **settings}
    cfg = Config(dict(default_scope='mmdet', val_dataloader=dict(dataset={**coco_config(tmp_path), **settings})))
    check_files(cfg, 'train', 'test')
    if message is None:
        check_files(cfg, 'val')
    else:
        with pytest.raises(InputError, match=f'val_dataloader.dataset: .*{message}'):
            check_files(cfg, 'val')


class Images(BaseDataset):
    def load_data_list(self):
        return [dict(img_path='a.jpg')]


def test_inner_datasets():
    """Datasets are found below whatever wraps them."""
    a, b = Images(serialize_data=False), Images(serialize_data=False)
    assert list(inner_datasets(ConcatDataset([a, b]))) == [a, b] and list(inner_datasets(RepeatDataset(b, 2))) == [b]
    assert list(inner_datasets(None)) == []


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_images_cut_short(tmp_path, suffix):
    """OpenCV up to 4.10 makes the rest grey. Bytes after a complete image do no harm."""
    path = tmp_path / f'a.{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    for contents in (whole, whole + b'more' * 100):
        path.write_bytes(contents)
        check_image(str(path))
    for share in (0.3, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError, match=f'a.{suffix} cannot be used: the image is cut short'):
            check_image(str(path))


def pipeline(*transforms):
    dataset = Images(serialize_data=False, metainfo=dict(classes=('a',)))
    return CheckedPipeline(Compose(transforms), dataset)


def test_files_that_cannot_be_loaded_are_named(tmp_path):
    """An image that cannot be read is a mistake in the data."""
    with pytest.raises(InputError, match='b.jpg cannot be used: FileNotFoundError'):
        pipeline(LoadImageFromFile())(dict(img_path=str(tmp_path / 'b.jpg')))


def test_errors_of_other_transforms_stay(log):
    """They may be mistakes in the code. The log names the image."""

    def broken(data):
        raise RuntimeError('too small')

    with pytest.raises(RuntimeError, match='^too small$'):
        pipeline(broken)(dict(img_path='a.jpg'))
    assert log == ['function failed on a.jpg']
