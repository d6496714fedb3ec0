"""MMDetection's COCO dataset with checked annotations; importing this imports MMDetection."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from mmdet.datasets import CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS
from mmengine.logging import print_log

from ..errors import InputError, describe


class CheckedCOCO(COCO):
    """The annotations of a file in COCO's format, checked when they are read.

    Args:
        annotation_file: path.

    Raises:
        InputError: if the file cannot be read, or its contents do not fit, see :func:`check_coco`.
    """

    def __init__(self, annotation_file: str) -> None:
        self.path = annotation_file
        try:
            super().__init__(annotation_file)
        except InputError:
            raise
        except OSError as error:
            raise InputError(f'{annotation_file} cannot be read: {describe(error)}') from error
        except Exception as error:  # whatever contents of another kind raise
            raise InputError(f"{annotation_file} is no annotation file in COCO's format: {describe(error)}") from error

    def createIndex(self) -> None:
        check_coco(self.dataset, self.path)
        super().createIndex()

    def get_cat_ids(self, cat_names: Sequence[str] = (), **others) -> list[int]:
        _check_classes([category['name'] for category in self.dataset['categories']], cat_names, self.path)
        return super().get_cat_ids(cat_names=cat_names, **others)


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """MMDetection's ``CocoDataset``, which refuses annotations that do not fit.

    Arguments, samples and ``metainfo`` are those of ``CocoDataset``.

    Raises:
        InputError: naming the file and the first entry that does not fit.
    """

    COCOAPI = CheckedCOCO

    def filter_data(self) -> list[dict]:
        images = super().filter_data()
        if not images:
            raise InputError(
                f'{self.ann_file} has no image to learn from: it lists none, or filter_cfg leaves out those without '
                'annotations and those that are too small'
            )
        return images


def check_coco(contents: dict, path: str | Path) -> None:
    """Check the contents of an annotation file. Boxes that reach out of their image are counted in the log.

    Raises:
        InputError: naming the first entry that does not fit.
    """
    for kind, keys in (
        ('images', ('id', 'file_name', 'width', 'height')),
        ('categories', ('id', 'name')),
        ('annotations', ('id', 'image_id', 'category_id', 'bbox', 'area')),
    ):
        if not isinstance(contents.get(kind, [] if kind == 'annotations' else None), list):
            raise InputError(f'{path} is no annotation file in COCO\'s format: it has no list "{kind}"')
        for index, entry in enumerate(contents.get(kind, ())):
            missing = [key for key in keys if not isinstance(entry, dict) or key not in entry]
            if missing:
                raise InputError(f'{path}: entry {index} of "{kind}" has no {", ".join(missing)}')
    sizes = {image['id']: (image['width'], image['height']) for image in contents['images']}
    categories = {category['id'] for category in contents['categories']}
    outside = 0
    for annotation in contents.get('annotations', ()):
        what = f'{path}: annotation {annotation["id"]}'
        if annotation['image_id'] not in sizes:
            raise InputError(f'{what} is of image {annotation["image_id"]}, which "images" does not have')
        if annotation['category_id'] not in categories:
            raise InputError(f'{what} is of category {annotation["category_id"]}, which "categories" does not have')
        box = annotation['bbox']
        if (
            not isinstance(box, list)
            or len(box) != 4
            or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in box)
        ):
            raise InputError(f'{what} has bbox {box}, which should be four numbers: left, top, width, height')
        (left, top, width, height), (image_width, image_height) = box, sizes[annotation['image_id']]
        if width < 0 or height < 0:
            raise InputError(f'{what} has bbox {box} of negative size: a box is left, top, width, height')
        if left >= image_width or top >= image_height or left + width < 0 or top + height < 0:
            raise InputError(f'{what} has bbox {box}, outside of its image of {image_width} x {image_height} pixels')
        outside += left < -1 or top < -1 or left + width > image_width + 1 or top + height > image_height + 1
    if outside:
        print_log(
            f'{path}: {outside} boxes reach out of their images; are they left, top, width, height?',
            logger='current',
            level=logging.WARNING,
        )


def _check_classes(names: list[str], classes: Sequence[str], path: str) -> None:
    """Compare the categories of a file with the classes of a dataset.

    MMDetection numbers the classes in the order of the file, and leaves out those that it does not find.
    """
    absent = [name for name in classes if name not in names]
    if absent:
        raise InputError(
            f'{path} has no category {", ".join(absent[:6])}{" ..." if len(absent) > 6 else ""} of the '
            f"dataset's classes, but {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}: "
            'set metainfo.classes of the dataset to those to be learned'
        )
    ordered = [name for name in names if name in classes]
    if ordered != list(classes):
        first = next(i for i, (a, b) in enumerate(zip(ordered, classes)) if a != b)
        raise InputError(
            f'{path} has its categories in another order than metainfo.classes of the dataset, first '
            f'{ordered[first]} where the dataset has {classes[first]}: MMDetection would take one for the other'
        )
