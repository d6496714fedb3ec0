"""MMDetection's COCO dataset and metric with checked annotations; importing this imports MMDetection."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from mmdet.datasets import CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation import CocoMetric
from mmdet.registry import DATASETS, METRICS
from mmengine.dataset import BaseDataset
from mmengine.fileio import get_local_path
from mmengine.logging import print_log

from ..errors import InputError, refusing, warn
from ..weights import first_names

#: the longest side of an image that OpenCV reads
MAX_SIDE = 2**20
#: why crowds are left out
CROWD = 'crowds (iscrowd)'
OTHER = 'of categories that metainfo.classes does not have'


class CheckedCOCO(COCO):
    """The annotations of a file in COCO's format, checked when they are read.

    Args:
        evaluated: what pycocotools is to evaluate with them, of "bbox", "segm" and the like; empty if nothing.

    Raises:
        InputError: if the file cannot be read, or its contents do not fit, see :func:`check_coco`.
    """

    def __init__(self, annotation_file: str, evaluated: Sequence[str] = ()) -> None:
        self.path, self.evaluated = annotation_file, evaluated
        unreadable = refusing(f'{annotation_file} cannot be read', (OSError,))
        with refusing(f"{annotation_file} is not an annotation file in COCO's format"), unreadable:
            with open(annotation_file, encoding='utf-8') as file:
                contents = json.load(file)
            super().__init__()
            self.dataset = contents
            self.createIndex()
            self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    def createIndex(self) -> None:
        check_coco(self.dataset, self.path, self.evaluated)
        super().createIndex()

    def get_cat_ids(self, cat_names: Sequence[str] = (), **others) -> list[int]:
        _check_classes([category['name'] for category in self.dataset['categories']], cat_names, self.path)
        return super().get_cat_ids(cat_names=cat_names, **others)


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """MMDetection's ``CocoDataset``, which refuses annotations that do not fit and logs what it leaves out.

    Raises:
        InputError: naming the file and the first entry that does not fit, or if no object is left.
    """

    COCOAPI = CheckedCOCO

    def load_data_list(self) -> list[dict]:
        self._uses, self._others, self._outside, self._backslashes = Counter(), {}, [], []
        images = super().load_data_list()
        for names, what in (
            (self._outside, 'are outside of its image folder'),
            (self._backslashes, 'have a backslash in their names, which this system does not take for /'),
        ):
            if names:
                print_log(f'{self.ann_file}: {len(names)} images {what}, the first is {names[0]}', logger='current')
        objects = self._uses.pop('', 0)
        if number := self._uses.pop(OTHER, 0):
            self._uses[f'{OTHER} ({first_names(self._others)})'] = number
        left_out = ', '.join(f'{number} {why}' for why, number in self._uses.most_common())
        purpose = 'evaluate' if self.test_mode else 'learn from'
        # With this setting, a detector learns from images without objects on purpose.
        without_objects = not self.test_mode and (self.filter_cfg or {}).get('filter_empty_gt') is False
        if left_out and not objects and not (without_objects and set(self._uses) == {CROWD}):
            raise InputError(f'{self.ann_file} has no object to {purpose}, its annotations are: {left_out}')
        if left_out:
            print_log(f'{self.ann_file}: {objects} objects to {purpose}, left out are: {left_out}', logger='current')
        return images

    def parse_data_info(self, raw_data_info: dict) -> dict:
        for annotation in raw_data_info['raw_ann_info']:
            self._uses[self._left_out(annotation, raw_data_info['raw_img_info'])] += 1
        name = raw_data_info['raw_img_info']['file_name']
        if self.data_prefix.get('img') and (os.path.isabs(name) or '..' in name.split('/')):
            self._outside.append(name)
        if os.sep == '/' and '\\' in name:
            self._backslashes.append(name)
        return super().parse_data_info(raw_data_info)

    def filter_data(self) -> list[dict]:
        images = super().filter_data()
        if not images:
            raise InputError(
                f'{self.ann_file} has no image to learn from: it lists none, or filter_cfg leaves out those without '
                'annotations and those that are too small'
            )
        return images

    def _left_out(self, annotation: dict, image: dict) -> str:
        """Why MMDetection does not learn from an annotation, or pycocotools does not evaluate it; '' if they do."""
        if annotation['category_id'] not in self.cat2label:
            self._others[str(self.coco.cats[annotation['category_id']]['name'])] = True
            return OTHER
        if annotation.get('iscrowd'):
            return CROWD
        if self.test_mode:
            return ''
        left, top, width, height = annotation['bbox']
        if annotation.get('ignore'):
            return 'marked with "ignore"'
        across = min(left + width, image['width']) - max(left, 0)
        down = min(top + height, image['height']) - max(top, 0)
        if min(width, height) < 1 or min(across, down) <= 0:
            return 'with a box of less than a pixel'
        if annotation['area'] == 0:
            return 'of area 0, though their boxes are not'
        polygons = annotation.get('segmentation')
        short = isinstance(polygons, list) and polygons and all(len(polygon) < 6 for polygon in polygons)
        if short and any(getattr(transform, 'with_mask', False) for transform in self.pipeline.transforms):
            return 'with polygons of fewer than 3 points'
        return ''


@METRICS.register_module()
class CheckedCocoMetric(CocoMetric):
    """MMDetection's ``CocoMetric``, which refuses annotations that pycocotools cannot evaluate before it is built.

    Raises:
        InputError: see :class:`CheckedCOCO`.
    """

    def __init__(self, ann_file: str | None = None, metric: str | list[str] = 'bbox', **arguments) -> None:
        self.ann_file, self.names = ann_file, []
        if ann_file is not None:
            evaluated = [] if arguments.get('format_only') else [metric] if isinstance(metric, str) else metric
            with get_local_path(ann_file, backend_args=arguments.get('backend_args')) as path:
                contents = CheckedCOCO(path, evaluated)
            self.images = {key: image['file_name'] for key, image in contents.imgs.items()}
            self.names = [category['name'] for category in contents.dataset['categories']]
        super().__init__(ann_file, metric, **arguments)
        if ann_file is not None and evaluated and 0 in self._coco_api.anns:
            # For pycocotools, an object is missed if it is matched with annotation 0.
            number, annotation = max(self._coco_api.anns) + 1, self._coco_api.anns.pop(0)
            annotation['id'], self._coco_api.anns[number] = number, annotation

    def results2json(self, results: Sequence[dict], outfile_prefix: str) -> dict[str, str]:
        """Write predictions. Afterwards, categories are sorted by their ids, as pycocotools returns the precisions.

        MMDetection's table would give the precisions of one class to another where the ids do not ascend in the file.
        """
        self.cat_ids = self._coco_api.get_cat_ids(cat_names=self.dataset_meta['classes'])
        files = super().results2json(results, outfile_prefix)
        self.cat_ids = sorted(self.cat_ids)
        return files

    def check_datasets(self, datasets: Sequence[BaseDataset]) -> None:
        """Check that the annotations are those of the datasets whose images are tested.

        Raises:
            InputError: if there are no annotations, or if they are of other images or classes.
        """
        if self.ann_file is None:
            transforms = [transform for dataset in datasets for transform in dataset.pipeline.transforms]
            packed = [transform.meta_keys for transform in transforms if hasattr(transform, 'meta_keys')]
            if packed and not any('instances' in keys for keys in packed):
                raise InputError(
                    'CocoMetric has no annotations: set ann_file, or add "instances" to meta_keys of PackDetInputs'
                )
            return
        seen = set()
        for dataset in datasets:
            classes = dataset.metainfo.get('thing_classes') or dataset.metainfo['classes']
            _check_classes(self.names, classes, self.ann_file)
            for index in range(len(dataset)):
                image = dataset.get_data_info(index)
                name = self.images.get(image['img_id'])
                if name is None or Path(name).name != Path(image['img_path']).name:
                    raise InputError(
                        f'{self.ann_file} of the evaluator is of other images than the dataset: '
                        f'its image {image["img_id"]} is {name}, that of the dataset is {image["img_path"]}'
                    )
                seen.add(image['img_id'])
        if len(seen) < len(self.images):
            warn(
                f'{self.ann_file}: {len(self.images) - len(seen)} of {len(self.images)} images are not in the '
                'dataset, all their objects count as missed'
            )


def _length(numbers: list) -> float:
    """The Euclidean norm, which takes less time than a look at each number; infinity or NaN if one of them is."""
    try:
        return math.hypot(*numbers)
    except (TypeError, OverflowError):
        return math.inf


def _is_box(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and bool not in map(type, value) and _length(value) < 1e15


def _is_number(value: object, least: int, end: float) -> bool:
    return type(value) in (int, float) and least <= value < end


def _has_corners(value: object) -> bool:
    return isinstance(value, list) and value and all(isinstance(part, list) and len(part) > 5 for part in value)


#: what a value must be, in words, and whether it is
Rule = tuple[str, Callable[[object], bool]]
ID: Rule = 'a whole number', lambda value: type(value) is str or NUMBER[1](value)
#: pandas writes whole numbers as floats, and 1.0 is 1 as a key of a dict
NUMBER: Rule = 'a whole number for pycocotools', lambda value: _is_number(value, 1 - 2**63, 2**63) and value % 1 == 0
TEXT: Rule = 'a text', lambda value: isinstance(value, str) and value != ''
SIDE: Rule = f'a number of pixels up to {MAX_SIDE}', lambda value: _is_number(value, 1, MAX_SIDE + 1) and value % 1 == 0
AREA: Rule = 'a number of pixels', lambda value: _is_number(value, 0, 1e15)
BOX: Rule = 'four numbers: left, top, width, height', _is_box
FLAG: Rule = '0 or 1', lambda value: value in (0, 1)
MASK: Rule = 'a list of polygons, or an RLE', lambda value: not value or isinstance(value, (list, dict))
EVALUATED_MASK: Rule = (
    'an RLE, or polygons of 3 points or more, for pycocotools to evaluate masks',
    lambda value: isinstance(value, dict) or _has_corners(value),
)


def check_coco(contents: dict, path: str | Path, evaluated: Sequence[str] = ()) -> None:
    """Check the contents of an annotation file. Boxes that reach out of their image are counted in the log.

    Args:
        evaluated: see :class:`CheckedCOCO`. If there is any, pycocotools must be able to evaluate each annotation.

    Raises:
        InputError: naming the first entry that does not fit.
    """
    key, mask = NUMBER if evaluated else ID, EVALUATED_MASK if 'segm' in evaluated else MASK
    images = _entries(contents, 'images', path, dict(id=ID, file_name=TEXT, width=SIDE, height=SIDE))
    categories = _entries(contents, 'categories', path, dict(id=key, name=TEXT))
    rules = dict(id=key, image_id=_id_of('images', images), category_id=_id_of('categories', categories))
    rules.update(bbox=BOX, area=AREA, iscrowd=FLAG, ignore=FLAG, segmentation=mask)
    # MMDetection does without iscrowd, and pycocotools does not.
    defaults = dict(ignore=0) if evaluated else dict(ignore=0, iscrowd=0)
    annotations = _entries(contents, 'annotations', path, rules, defaults)
    outside = 0
    for number, annotation in annotations.items():
        image = images[annotation['image_id']]
        if wrong := wrong_place(annotation, image['width'], image['height']):
            raise InputError(f'{path}: annotation {number} has {wrong}')
        left, top, width, height = annotation['bbox']
        outside += left < -1 or top < -1 or left + width > image['width'] + 1 or top + height > image['height'] + 1
    if outside:
        warn(f'{path}: {outside} boxes reach out of their images; are they left, top, width, height?')
    if evaluated and not annotations:
        raise InputError(f'{path} has no annotations to evaluate with')
    if evaluated and len({isinstance(number, str) for number in images}) > 1:
        raise InputError(f'{path} has numbers and texts as ids in "images": pycocotools evaluates one kind only')


def _id_of(kind: str, entries: dict) -> Rule:
    return f'an id of "{kind}"', lambda value: isinstance(value, Hashable) and value in entries


def _entries(
    contents: dict, kind: str, path: str | Path, rules: dict[str, Rule], defaults: dict[str, object] = {}
) -> dict:
    """The entries of one of the lists by their ids, checked by rules. No id, file name or name of a category is twice.

    Args:
        defaults: values of keys that are missing; of others it is None.
    """
    listed = contents.get(kind, [] if kind == 'annotations' else None) if isinstance(contents, dict) else None
    if not isinstance(listed, list):
        raise InputError(f'{path} is not an annotation file in COCO\'s format: it has no list "{kind}"')
    entries, seen = {}, {key: set() for key in ('id', 'file_name', 'name') if key in rules}
    for index, entry in enumerate(listed):
        given = entry if isinstance(entry, dict) else {}
        for key, (what, fits) in rules.items():
            value = given.get(key, defaults.get(key))
            if not fits(value):
                one = f'entry {index} of "{kind}"' + f' (id {given.get("id")})' * (key != 'id')
                has = f'{key} {repr(value)[:60]}' if key in given else f'no {key}'
                raise InputError(f'{path}: {one} has {has}, which should be {what}')
        for key, values in seen.items():
            if entry[key] in values:
                raise InputError(f'{path} has {key} {entry[key]!r} twice in "{kind}": give it once, with all its data')
            values.add(entry[key])
        entries[entry['id']] = entry
    return entries


def wrong_place(annotation: dict, width: int, height: int) -> str:
    """What of an annotation is not within an image of a size, as the end of a sentence; '' if all is."""
    left, top, across, down = box = annotation['bbox']
    size = f'its image of {width} x {height} pixels'
    if across < 0 or down < 0:
        return f'bbox {box} of negative size: a box is left, top, width, height'
    if left > width or top > height or left + across < 0 or top + down < 0:
        return f'bbox {box}, outside of {size}'
    segmentation = annotation.get('segmentation') or []
    if isinstance(segmentation, dict):
        counts = segmentation.get('counts')
        counts = _decompress(counts) if isinstance(counts, str) else counts
        if segmentation.get('size') != [height, width]:
            return f'a mask of size {segmentation.get("size")}, which should be [height, width] of {size}'
        # pycocotools leaves pixels unset, writes beyond the image or never ends when there are fewer or more.
        whole = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
        return '' if whole and sum(counts) == width * height else f'a mask whose counts are not those of {size}'
    for polygon in segmentation:
        # Polygons far outside of the image cost pycocotools gigabytes, or crash it. On average, the numbers are at most
        # twice the longest side.
        even = isinstance(polygon, list) and len(polygon) % 2 == 0
        if not even or not _length(polygon) <= 2 * max(width, height) * math.sqrt(len(polygon)):
            return f'a polygon {str(polygon)[:60]} that should be a list of numbers x, y ... in {size}'
    return ''


def _decompress(text: str) -> list[int] | None:
    """The counts of a compressed RLE, as ``rleFrString`` of pycocotools reads them; None if the text is not an RLE.

    pycocotools does not return them, and crashes on some that are wrong.
    """
    counts, value, shift = [], 0, 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64:
            return None
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = shift = 0
    return None if shift else counts


def _check_classes(names: list[str], classes: Sequence[str], path: str) -> None:
    """Compare the categories of a file with the classes of a dataset.

    MMDetection numbers the classes in the order of the file, and leaves out those that it does not find.
    """
    if isinstance(classes, str) or len(set(classes)) < len(classes):
        raise InputError(f'metainfo.classes for {path} is {classes!r}, which should be a tuple of different names')
    absent = [name for name in classes if name not in names]
    if absent:
        raise InputError(
            f"{path} has no category {first_names(absent)} of the dataset's classes, but {first_names(names)}: "
            'set metainfo.classes of the dataset to those to be learned'
        )
    ordered = [name for name in names if name in classes]
    if ordered != list(classes):
        first = next(i for i, (a, b) in enumerate(zip(ordered, classes)) if a != b)
        raise InputError(
            f'{path} has its categories in another order than metainfo.classes of the dataset, first '
            f'{ordered[first]} where the dataset has {classes[first]}, and MMDetection would take one for the other: '
            'put the entries of "categories" in the order of metainfo.classes, their ids may stay'
        )
