"""Annotations of VOC, and MMDetection's datasets of them with checks; importing this imports MMDetection."""

import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from mmdet.datasets import VOCDataset, XMLDataset
from mmdet.registry import DATASETS
from mmengine.fileio import get_local_path
from mmengine.logging import print_log

from ..errors import InputError, refusing, warn
from ..weights import first_names
from .coco import wrong_place


class VOCObject(NamedTuple):
    """An object of an image."""

    name: str  #: of its class
    box: list[float]  #: left, top, right, bottom in pixels, counted from 0 as MMDetection does
    difficult: bool  #: not learned, and no mistake if it is not found


class VOCFile(NamedTuple):
    """What an XML file says of its image."""

    image: str  #: name of the image file; '' if there is none
    size: tuple[int, int] | None  #: width and height
    objects: list[VOCObject]


def read_voc(path: str | Path) -> VOCFile:
    """Read an XML file of VOC.

    Raises:
        InputError: naming the file, if it cannot be read, or lacks something that MMDetection needs.
    """
    unreadable = refusing(f'{path}: cannot be read', (OSError,))
    with refusing(f'{path}: is not an XML file'), unreadable:
        root = ElementTree.parse(path).getroot()
    if root.tag != 'annotation':
        raise InputError(f'{path}: is not a file of VOC, it has <{root.tag}> in place of <annotation>')

    def value(node: ElementTree.Element | None, key: str, kind: Callable) -> object:
        text = None if node is None else node.findtext(key)
        if text is None:
            raise InputError(f'{path}: there is no <{key}> where it should be')
        with refusing(f'{path}: <{key}> is no number', (ValueError,)):
            return kind(text)

    size, objects = root.find('size'), []
    for node in root.findall('object'):
        box = [value(node.find('bndbox'), key, float) - 1 for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        if not all(map(math.isfinite, box)):
            raise InputError(f'{path}: a corner of a box is no number')
        difficult = node.find('difficult') is not None and value(node, 'difficult', int) != 0
        objects.append(VOCObject(value(node, 'name', str), box, difficult))
    return VOCFile(
        root.findtext('filename') or '',
        None if size is None else (value(size, 'width', int), value(size, 'height', int)),
        objects,
    )


@DATASETS.register_module()
class CheckedXMLDataset(XMLDataset):
    """MMDetection's ``XMLDataset``, which refuses annotations that do not fit and logs what it leaves out.

    Raises:
        InputError: naming the first file that does not fit, or if no object is left.
    """

    def load_data_list(self) -> list[dict]:
        classes = self.metainfo.get('classes')
        if not classes or isinstance(classes, str) or len(set(classes)) < len(classes):
            raise InputError(
                f'metainfo.classes for {self.ann_file} is {classes!r}, which should be a tuple of different names'
            )
        if self.test_mode and self.bbox_min_size is not None:
            raise InputError(f'filter_cfg.bbox_min_size leaves out objects for training, and {self.ann_file} is tested')
        self._unknown, self._uses, self._beyond = Counter(), Counter(), 0
        images = super().load_data_list()
        if not images:
            raise InputError(f'{self.ann_file} lists no image')
        if self._beyond:
            warn(f'{self.ann_file}: {self._beyond} boxes reach out of their images')
        names = first_names(f'{number} {name!r}' for name, number in self._unknown.most_common())
        self._uses['of classes that metainfo.classes does not have: ' + names] = self._unknown.total()
        objects = self._uses.pop('', 0)
        left_out = ', '.join(f'{number} {why}' for why, number in self._uses.most_common() if number)
        # With this setting, a detector learns from images without objects on purpose.
        without_objects = not self.test_mode and (self.filter_cfg or {}).get('filter_empty_gt') is False
        if not objects and (left_out or not without_objects):
            raise InputError(
                f'{self.ann_file} has no object to {"evaluate" if self.test_mode else "learn from"}, the XML files of '
                f'its images have {left_out or "none"}'
            )
        if left_out:
            print_log(f'{self.ann_file}: {objects} objects are used, left out are {left_out}', logger='current')
        return images

    def filter_data(self) -> list[dict]:
        images = super().filter_data()
        if not images:
            raise InputError(f'{self.ann_file} has no image to learn from: all are smaller than filter_cfg.min_size')
        return images

    def parse_data_info(self, img_info: dict) -> dict:
        path = img_info['xml_path']
        with get_local_path(path, backend_args=self.backend_args) as local:
            objects = read_voc(local).objects
        if not self.backend_args and not os.path.isfile(os.path.join(self.sub_data_root, img_info['file_name'])):
            raise InputError(
                f'{path} has no image {img_info["file_name"]}: XMLDataset reads .jpg only. Others are read after '
                'tools/convert_data.py voc'
            )
        info = super().parse_data_info(img_info)
        for name, (left, top, right, bottom), difficult in objects:
            if name not in self.metainfo['classes']:
                self._unknown[name] += 1
                continue
            width, height = right - left, bottom - top
            if width < 0 or height < 0:
                raise InputError(
                    f'{path}: {name} has swapped corners, {left + 1:g}, {top + 1:g} and {right + 1:g}, {bottom + 1:g}: '
                    'put the smaller numbers into xmin and ymin, as tools/convert_data.py voc does'
                )
            if wrong := wrong_place(dict(bbox=[left, top, width, height]), info['width'], info['height']):
                raise InputError(f'{path}: {name} has {wrong}')
            self._beyond += left < -1 or top < -1 or right > info['width'] + 1 or bottom > info['height'] + 1
            small = self.bbox_min_size is not None and min(width, height) < self.bbox_min_size
            self._uses['marked as difficult' if difficult else 'smaller than bbox_min_size' if small else ''] += 1
        return info


@DATASETS.register_module()
class CheckedVOCDataset(CheckedXMLDataset, VOCDataset):
    """MMDetection's ``VOCDataset`` with the checks of :class:`CheckedXMLDataset`."""
