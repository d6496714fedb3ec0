"""COCO annotations are checked when they are read, and before they are evaluated with."""

import copy
import itertools
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from pycocotools import mask as masks

from mmguard.checks.coco import CheckedCOCO, CheckedCocoDataset, CheckedCocoMetric, check_coco, wrong_place
from mmguard.errors import InputError

COCO = dict(
    images=[dict(id=7, file_name='a.jpg', width=20, height=10)],
    categories=[dict(id=3, name='cat'), dict(id=5, name='dog')],
    annotations=[
        dict(id=1, image_id=7, category_id=5, iscrowd=0, area=12, bbox=[1, 2, 3, 4], segmentation=[[1, 2, 4, 2, 4, 6]])
    ],
)


def with_floats():
    """COCO with ids as pandas writes them."""
    contents = copy.deepcopy(COCO)
    for entry in (*contents['images'], *contents['categories'], *contents['annotations']):
        entry.update({key: float(value) for key, value in entry.items() if key.endswith('id')})
    return contents


def changed(kind, **values):
    contents = copy.deepcopy(COCO)
    contents[kind][0].update(values)
    return contents


def more(kind, **values):
    """COCO with a second entry like the first."""
    contents = copy.deepcopy(COCO)
    contents[kind].append({**contents[kind][0], **values})
    return contents


def masked(segmentation):
    return changed('annotations', segmentation=segmentation)


def compressed(width=20, height=10):
    mask = np.random.default_rng(0).integers(0, 2, (height, width), np.uint8)
    return {**masks.encode(np.asfortranarray(mask)), 'counts': masks.encode(np.asfortranarray(mask))['counts'].decode()}


@pytest.mark.parametrize(
    'contents, message',
    [
        ({}, 'no list "images"'),
        ({**COCO, 'images': [3]}, 'entry 0 of "images" has no id, which should be a whole number'),
        ({**COCO, 'annotations': [dict(id=1, image_id=7)]}, 'has no category_id, which should be an id of'),
        (changed('annotations', image_id=8), r'\(id 1\) has image_id 8, which should be an id of "images"'),
        (changed('annotations', category_id=[4]), r'has category_id \[4\], which should be an id of "categories"'),
        (changed('annotations', bbox=[1, 2, 3]), 'should be four numbers'),
        (changed('annotations', bbox=[1, 2, 3, float('nan')]), 'should be four numbers'),
        (changed('annotations', bbox=[1, 2, 3, 10**400]), 'should be four numbers'),
        (changed('annotations', bbox=[9, 9, -3, 4]), 'of negative size'),
        (changed('annotations', bbox=[9, 5, 3, -4]), 'of negative size'),
        (changed('annotations', bbox=[21, 2, 3, 4]), 'outside of its image of 20 x 10'),
        (changed('annotations', bbox=[-9, 2, 3, 4]), 'outside of its image of 20 x 10'),
        (changed('annotations', bbox=[1, 11, 3, 4]), 'outside of its image of 20 x 10'),
        (changed('annotations', bbox=[1, -9, 3, 4]), 'outside of its image of 20 x 10'),
        (changed('annotations', area=-1), 'has area -1'),
        (changed('annotations', iscrowd=2), 'has iscrowd 2, which should be 0 or 1'),
        (changed('annotations', ignore=[]), r'has ignore \[\], which should be 0 or 1'),
        (changed('annotations', id=[1]), r'entry 0 of "annotations" has id \[1\], which should be a whole number'),
        (more('annotations'), 'has id 1 twice in "annotations"'),
        (more('images', id=8), 'has file_name \'a.jpg\' twice in "images"'),
        (more('categories', id=9), 'has name \'cat\' twice in "categories"'),
        (changed('images', file_name=''), "has file_name '', which should be a text"),
        (changed('images', width=0), r'entry 0 of "images" \(id 7\) has width 0, which should be a number of pixels'),
        (changed('images', height=9.5), 'has height 9.5'),
        (masked('a.png'), "has segmentation 'a.png', which should be a list of polygons"),
        (masked([[1, 2, 3, 4, 5, 6, 7]]), 'has a polygon .* that should be a list of numbers'),
        (masked([[1, 2, 3, float('nan'), 5, 6]]), 'has a polygon .* in its image of 20 x 10 pixels'),
        (masked([[1, 2, 3, 1000, 5, 6]]), 'has a polygon .* in its image of 20 x 10 pixels'),
        (masked({'size': [20, 10], 'counts': [5, 195]}), r'has a mask of size \[20, 10\], which should be \[height,'),
        (masked({'size': [10, 20], 'counts': [5, 194]}), 'has a mask whose counts'),
        (masked({'size': [10, 20], 'counts': [5, -5, 200]}), 'has a mask whose counts'),
        (masked({'size': [10, 20], 'counts': 'no RLE'}), 'has a mask whose counts'),
        (masked({**compressed(21), 'size': [10, 20]}), 'has a mask whose counts'),
    ],
)
def test_annotations_that_do_not_fit(contents, message):
    """MMDetection leaves such annotations out without a word, or it, pycocotools or Python fails in an odd place."""
    with pytest.raises(InputError, match=message):
        check_coco(contents, 'file.json')


def test_annotations_that_do(log):
    """Boxes may have no height, in COCO itself, or lie on the edge. Boxes that reach out are counted in the log."""
    for contents in (
        {key: value for key, value in COCO.items() if key != 'annotations'},
        *(changed('annotations', bbox=box) for box in ([1, 2, 3, 0], [20, 2, 0, 4])),
        changed('annotations', iscrowd=True, id='a'),
        with_floats(),
        *map(masked, (None, [], [[1, 2, 3, 4]], [[-3.5, 0, 25, 0, 9, 12]], compressed())),
        masked({'size': [10, 20], 'counts': [5, 195]}),
    ):
        check_coco(contents, 'file.json')
    assert not log
    check_coco(changed('annotations', bbox=[17, 2, 9, 4]), 'file.json')
    assert '1 boxes reach out' in log[0]


@pytest.mark.parametrize(
    'classes, message',
    [
        (('cat', 'cow'), 'has no category cow'),
        (('dog', 'cat'), 'another order .* put the entries of "categories" in the order of metainfo.classes'),
        (('cat', 'dog', 'cat'), 'a tuple of different names'),
    ],
)
def test_classes(tmp_path, classes, message):
    """MMDetection would shift the numbers of all classes after one that is not in the file."""
    with pytest.raises(InputError, match=message):
        CheckedCocoDataset(**coco_config(tmp_path, metainfo=dict(classes=classes)))


def coco_config(folder, contents=COCO, **settings):
    (folder / 'a.json').write_text(json.dumps(contents))
    (folder / 'images').mkdir(exist_ok=True)
    settings = {'metainfo': dict(classes=('cat', 'dog')), 'pipeline': [], **settings}
    return dict(data_root=str(folder), ann_file='a.json', data_prefix=dict(img='images/'), **settings)


def test_the_checked_dataset_is_mmdetections(tmp_path):
    """Samples and metainfo are those of CocoDataset, which is itself not changed."""
    checked, plain = (cls(**coco_config(tmp_path)) for cls in (CheckedCocoDataset, CocoDataset))
    assert checked[0] == plain[0] and checked.metainfo == plain.metainfo and len(checked) == len(plain) == 1
    assert CocoDataset.COCOAPI.__module__.startswith('mmdet')
    with pytest.raises(InputError, match='a.json has no image to learn from'):  # MMDetection would concatenate nothing
        CheckedCocoDataset(**coco_config(tmp_path, filter_cfg=dict(min_size=99)))


def test_compressed_masks():
    """What is taken of masks with a wrong character is what pycocotools decodes to pixels of the image.

    It decodes some others to memory that it has not set.
    """
    counts = masks.frPyObjects(dict(size=[10, 20], counts=[5, 40, 3, 60, 7, 20, 65]), 10, 20)['counts'].decode()
    taken = 0
    for place, code in itertools.product(range(len(counts)), range(40, 120)):
        rle = dict(size=[10, 20], counts=counts[:place] + chr(code) + counts[place + 1 :])
        if not wrong_place(dict(bbox=[1, 2, 3, 4], segmentation=rle), 20, 10):
            mask = masks.decode(rle)
            assert mask.max() <= 1 and mask.sum() == masks.area(rle)
            taken += 1
    assert taken >= len(counts)


CROWD = dict(iscrowd=1, segmentation={'size': [10, 20], 'counts': [5, 195]})


@pytest.mark.parametrize(
    'contents, evaluated, message',
    [
        ({**COCO, 'annotations': []}, ['bbox'], 'has no annotations to evaluate with'),
        (with_floats(), ['bbox', 'segm'], None),
        (more('annotations', id=0, bbox=[9, 2, 3, 4]), ['bbox', 'segm'], None),
        (changed('annotations', id='a'), ['bbox'], "has id 'a', which should be a whole number for pycocotools"),
        (more('images', id='8', file_name='b.jpg'), ['bbox'], 'has numbers and texts as ids in "images"'),
        (masked([[1, 2, 4, 2, 4, 6], [1, 2, 3, 4]]), ['bbox', 'segm'], 'should be an RLE, or polygons of 3 points'),
        (masked([]), ['segm'], r'has segmentation \[\], which should be an RLE, or polygons'),
        (more('annotations', id=2, **CROWD), ['segm'], None),
    ],
)
def test_evaluation(tmp_path, contents, evaluated, message):
    """pycocotools evaluates with the contents that pass. It would die of the others after an epoch, or miss objects."""
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(contents))
    if message is None:
        CheckedCocoMetric(str(path), metric=evaluated)
        assert evaluate(path, evaluated) == {f'{metric}_mAP': pytest.approx(1) for metric in evaluated}
    else:
        with pytest.raises(InputError, match=message):
            CheckedCocoMetric(str(path), metric=evaluated)


def test_evaluation_without_iscrowd(tmp_path):
    """pycocotools needs iscrowd, and MMDetection does not. For results that are only written, nothing is evaluated."""
    contents = copy.deepcopy(COCO)
    del contents['annotations'][0]['iscrowd']
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(contents))
    CheckedCOCO(path)
    CheckedCocoMetric(str(path), format_only=True, outfile_prefix='x')
    with pytest.raises(InputError, match='has no iscrowd, which should be 0 or 1'):
        CheckedCocoMetric(str(path))


def evaluate(path, evaluated):
    """The AP of predictions that are the annotations."""
    metric = CheckedCocoMetric(str(path), metric=evaluated, metric_items=['mAP'])
    metric.dataset_meta = dict(classes=('cat', 'dog'))
    contents = json.loads(path.read_text())
    for image in contents['images']:
        objects = [a for a in contents['annotations'] if a['image_id'] == image['id'] and not a['iscrowd']]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (one['bbox'] for one in objects)]
        prediction = dict(img_id=image['id'], bboxes=np.array(boxes).reshape(-1, 4), scores=np.ones(len(objects)))
        prediction['labels'] = [[3, 5].index(one['category_id']) for one in objects]
        if 'segm' in evaluated:
            prediction['masks'] = [metric._coco_api.annToRLE(one) for one in objects]
        metric.results.append((dict(width=20, height=10), prediction))
    return metric.compute_metrics(metric.results)


def test_precisions_of_classes_whose_ids_descend(tmp_path):
    """pycocotools returns the precisions in the order of the ids, and MMDetection names them in that of the file."""
    contents = more('annotations', id=2, category_id=3, bbox=[9, 2, 3, 4])
    contents['categories'].reverse()
    (tmp_path / 'a.json').write_text(json.dumps(contents))
    metric = CheckedCocoMetric(str(tmp_path / 'a.json'), classwise=True)
    metric.dataset_meta = dict(classes=('dog', 'cat'))
    dog = dict(img_id=7, bboxes=np.array([[1, 2, 4, 6]]), scores=np.ones(1), labels=[0])
    for _ in range(2):  # a second epoch finds the order of the labels again
        figures = metric.compute_metrics([(dict(width=20, height=10), dog)])
        assert (figures['dog_precision'], figures['cat_precision']) == (pytest.approx(1), 0)


@pytest.mark.parametrize('values, name', [(dict(file_name='b.jpg'), 'b.jpg'), (dict(id=8), None), ({}, '')])
def test_evaluation_of_other_images(tmp_path, values, name):
    """Annotations of other images would be compared with the predictions, or pycocotools would die at the end."""
    dataset = CheckedCocoDataset(**coco_config(tmp_path))
    contents = changed('images', **{'file_name': 'deeper/a.jpg', **values})
    contents['annotations'][0]['image_id'] = contents['images'][0]['id']
    (tmp_path / 'b.json').write_text(json.dumps(contents))
    metric = CheckedCocoMetric(str(tmp_path / 'b.json'))
    sentence = f'is of other images than the dataset: its image 7 is {name}'
    with pytest.raises(InputError, match=sentence) if values else nullcontext():
        metric.check_datasets([dataset])


def test_evaluation_of_other_classes_and_fewer_images(tmp_path, log):
    """Classes in another order would be taken for each other. Images that are not tested are counted in the log."""
    (tmp_path / 'b.json').write_text(json.dumps(more('images', id=8, file_name='b.jpg')))
    metric = CheckedCocoMetric(str(tmp_path / 'b.json'))
    metric.check_datasets([CheckedCocoDataset(**coco_config(tmp_path))])
    assert '1 of 2 images are not in the dataset' in log[-1]
    contents = {**COCO, 'categories': COCO['categories'][::-1]}
    (tmp_path / 'b.json').write_text(json.dumps(contents))
    with pytest.raises(InputError, match='another order'):
        CheckedCocoMetric(str(tmp_path / 'b.json')).check_datasets([CheckedCocoDataset(**coco_config(tmp_path))])


def test_evaluation_without_a_file():
    """MMDetection then evaluates with the annotations of the dataset, if the pipeline packs them."""
    pack = SimpleNamespace(meta_keys=('img_id', 'instances'))
    datasets = [SimpleNamespace(pipeline=SimpleNamespace(transforms=[pack]))]
    CheckedCocoMetric().check_datasets(datasets)
    pack.meta_keys = ('img_id',)
    with pytest.raises(InputError, match='CocoMetric has no annotations: set ann_file'):
        CheckedCocoMetric().check_datasets(datasets)


@pytest.mark.parametrize(
    'values, why, evaluated',
    [
        (dict(area=0), '1 of area 0, though their boxes are not', True),
        (dict(iscrowd=1), r'1 crowds \(iscrowd\)', False),
        (dict(ignore=1), '1 marked with "ignore"', True),
        (dict(bbox=[1, 2, 3, 0.5]), '1 with a box of less than a pixel', True),
        (dict(segmentation=[[1, 2, 3, 4]]), '1 with polygons of fewer than 3 points', True),
        (dict(category_id=3), r'1 of categories that metainfo.classes does not have \(cat\)', False),
    ],
)
def test_what_is_left_out(tmp_path, log, values, why, evaluated):
    """MMDetection leaves such objects out without a word. They are counted, and one object must remain."""
    settings = dict(metainfo=dict(classes=('dog',)))
    pipeline = [dict(type='mmdet.LoadAnnotations', with_mask=True)]
    CheckedCocoDataset(**coco_config(tmp_path, more('annotations', id=2, **values), pipeline=pipeline, **settings))
    assert 'a.json: 1 objects to learn from, left out are: ' + why.replace('\\', '') in log[-1]
    config = coco_config(tmp_path, changed('annotations', **values), pipeline=pipeline, **settings)
    with pytest.raises(InputError, match=f'a.json has no object to learn from, its annotations are: {why}'):
        CheckedCocoDataset(**config)
    if evaluated:
        CheckedCocoDataset(**config, test_mode=True)
    else:
        with pytest.raises(InputError, match=f'a.json has no object to evaluate, its annotations are: {why}'):
            CheckedCocoDataset(**config, test_mode=True)


def test_crowds_alone(tmp_path, log):
    """A file without objects is for training if the config keeps such images."""
    crowd, settings = changed('annotations', **CROWD), dict(filter_cfg=dict(filter_empty_gt=False))
    assert len(CheckedCocoDataset(**coco_config(tmp_path, crowd, **settings))) == 1
    assert 'a.json: 0 objects to learn from, left out are: 1 crowds' in log[-1]
    for contents, changes in ((crowd, dict(test_mode=True)), (changed('annotations', area=0), {})):
        with pytest.raises(InputError, match='has no object to'):
            CheckedCocoDataset(**coco_config(tmp_path, contents, **settings, **changes))


@pytest.mark.parametrize('text', [b'[]', b'{', b'\xff', b'[' * 100000], ids=['list', 'cut', 'bytes', 'nested'])
def test_files_that_are_not_coco(tmp_path, text):
    """Python raises several kinds of errors for these."""
    (tmp_path / 'a.json').write_bytes(text)
    with pytest.raises(InputError, match="a.json is not an annotation file in COCO's format"):
        CheckedCOCO(str(tmp_path / 'a.json'))


@pytest.mark.parametrize(
    'name, words', [('../a.jpg', 'outside of its image folder'), ('b\\a.jpg', 'have a backslash'), ('a..jpg', None)]
)
def test_names_that_lead_elsewhere(tmp_path, log, name, words):
    """They are used as they are; one line says so."""
    CheckedCocoDataset(**coco_config(tmp_path, changed('images', file_name=name)))
    said = [line for line in log if 'images' in line]
    assert (len(said) == 1 and words in said[0] and said[0].endswith(name)) if words else not said
