"""What is checked of a run's inputs that MMDetection and MMSegmentation would pass over or trip over later."""

import inspect
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

from mmengine.dataset import BaseDataset, Compose
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import BaseLoop
from torch import nn

from ..errors import InputError, describe, near_misses
from ..weights import CheckpointError


class InputCheckHook(Hook):
    """Checks datasets before the first step, samples as they are read, and checkpoints before they are taken.

    The checks before the first step open no picture.

    Raises:
        InputError: in the first sentence that the inputs deserve.
    """

    def before_run(self, runner) -> None:
        training = isinstance(runner._train_loop, BaseLoop)
        if training and runner.max_iters <= 0:
            raise InputError(
                f'the training has {runner.max_iters} steps: max_epochs or max_iters of train_cfg must be 1 or more'
            )
        for hook in runner.hooks:
            if not isinstance(hook, CheckpointHook):
                continue
            # It hands on what it does not know, to fail at the end of an epoch.
            unknown = set(hook.args) - set(inspect.signature(runner.save_checkpoint).parameters)
            if unknown:
                known = set(inspect.signature(CheckpointHook).parameters)
                raise InputError(
                    f'default_hooks.checkpoint has an unknown argument {min(unknown)}{near_misses(min(unknown), known)}'
                )
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            for dataset in leaves(getattr(getattr(loop, 'dataloader', None), 'dataset', None)):
                check_dataset(dataset, runner.model)
                dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        weights, source = checkpoint.get('state_dict', checkpoint), runner._load_from or 'the checkpoint'
        if isinstance(runner._train_loop, BaseLoop):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        model = model.module if isinstance(model, BaseTTAModel) else model
        given = {name.removeprefix('module.'): value.shape for name, value in weights.items()}
        absent = [
            name
            for name, value in model.state_dict().items()
            if given.get(name) != value.shape and not name.endswith('num_batches_tracked')
        ]
        if absent:
            raise CheckpointError(
                f'{source} is of another model: {type(model).__name__} has {len(absent)} tensors '
                f'that are not there, or not of that shape, the first being {absent[0]}'
            )


def leaves(dataset: object) -> Iterator[BaseDataset]:
    """The datasets that a dataset is made of, however it wraps them."""
    if isinstance(dataset, BaseDataset):
        yield dataset
    for part in getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from leaves(part)


def check_dataset(dataset: BaseDataset, model: nn.Module) -> None:
    """Make sure that there is something in a dataset, that its files are there and that its classes are the model's.

    Raises:
        InputError: if not.
    """
    name = f'{type(dataset).__name__} {dataset.ann_file or dataset.data_prefix.get("img_path")}'
    if not len(dataset):
        raise InputError(f'{name} has no picture: none is there, or filter_cfg and what is not annotated left none')
    classes = dataset.metainfo.get('classes')
    if classes and 'thing_classes' not in dataset.metainfo:
        for path, module in model.named_modules():
            number = getattr(module, 'num_classes', None)
            if (
                'head' in path
                and not {'rpn_head', 'semantic_head'} & set(path.split('.'))
                and isinstance(number, int)
                and number != len(classes)
            ):
                raise InputError(
                    f'{name} has {len(classes)} classes and {path} of the model {number}: make '
                    'num_classes of the model and metainfo.classes of the dataset agree'
                )
    if getattr(dataset, 'backend_args', None):
        return  # elsewhere than on a disk
    masks = any(getattr(transform, 'with_mask', False) for transform in dataset.pipeline.transforms)
    absent, folders = [], {}
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        for path in (info.get('img_path'), info.get('seg_map_path')):
            if path:
                folder, file = os.path.split(path)
                if folder not in folders:
                    folders[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
                if file not in folders[folder]:
                    absent.append(path)
        if masks and not all('mask' in instance for instance in info.get('instances', ())):
            raise InputError(
                f'{name}: an annotation of {info["img_path"]} has no segmentation, which LoadAnnotations '
                'with_mask=True needs'
            )
    if absent:
        raise InputError(f'{name} names {len(absent)} files that are not there, the first being {absent[0]}')


class CheckedPipeline(Compose):
    """A dataset's pipeline whose errors name the picture, and which takes neither pictures nor label maps that do not
    fit."""

    def __init__(self, pipeline: Compose, dataset: BaseDataset) -> None:
        self.transforms = pipeline.transforms
        # a label map of MMSegmentation has a number per class; those of MMDetection are of other kinds
        self.num_classes = len(dataset.metainfo['classes']) if hasattr(dataset, 'label_map') else None

    def __call__(self, data: dict) -> dict | None:
        for transform in self.transforms:
            kind = type(transform).__name__
            path = data.get('seg_map_path') if kind == 'LoadAnnotations' else None
            path = path or data.get('img_path')
            try:
                data = transform(data)
            except Exception as error:
                raise InputError(f'{path} cannot be used: {describe(error)}, in {kind}') from error
            if data is None:
                return None
            if kind == 'LoadImageFromFile':
                check_picture(path)
            elif kind == 'LoadAnnotations' and self.num_classes:
                self._check_labels(data)
        return data

    def _check_labels(self, data: dict) -> None:
        labels, path = data['gt_seg_map'], data['seg_map_path']
        if labels.ndim == 1 and 1 in data['ori_shape'] and labels.size == max(data['ori_shape']):
            # MMSegmentation squeezes
            labels = data['gt_seg_map'] = labels.reshape(data['ori_shape'])
        if labels.shape != tuple(data['ori_shape']):
            raise InputError(
                f'{path} is {" x ".join(map(str, labels.shape))} and its picture '
                f'{" x ".join(map(str, data["ori_shape"]))}: a label map has a number per pixel'
            )
        wrong = labels[(labels >= self.num_classes) & (labels != 255)]
        if len(wrong):
            raise InputError(
                f'{path} has label {wrong[0]} where the dataset has {self.num_classes} classes, counted '
                'from 0 (after reduce_zero_label), and 255 for what is ignored'
            )


def check_picture(path: str | None) -> None:
    """Make sure that a JPEG or PNG that OpenCV has read was whole: up to 4.10, it makes a grey rest of what is cut off.

    Raises:
        InputError: if it is not.
    """
    if path is None or not os.path.isfile(path):
        return
    with open(path, 'rb') as file:
        start = file.read(2)
        file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
        end = file.read()
    if start == b'\xff\xd8' and not end.endswith(b'\xff\xd9') or start == b'\x89P' and b'IEND' not in end:
        from PIL import Image

        try:
            with Image.open(path) as picture:
                picture.load()  # something may well follow a whole picture
        except (OSError, SyntaxError) as error:
            raise InputError(f'{path} cannot be used: the picture is cut short ({describe(error)})') from error


def check_coco_files() -> None:
    """From now on, MMDetection's CocoDataset checks its annotation files, which are still read once."""
    from mmdet.datasets import CocoDataset
    from mmdet.datasets.api_wrappers import COCO

    class CheckedCOCO(COCO):
        def __init__(self, annotation_file: str) -> None:
            self.path = annotation_file
            try:
                super().__init__(annotation_file)
            except (InputError, OSError):
                raise
            except Exception as error:
                raise InputError(
                    f"{annotation_file} is no annotation file in COCO's format: {describe(error)}"
                ) from error

        def createIndex(self) -> None:
            check_coco(self.dataset, self.path)
            super().createIndex()

        def get_cat_ids(self, cat_names=(), **others) -> list:
            _check_classes([category['name'] for category in self.dataset['categories']], cat_names, self.path)
            return super().get_cat_ids(cat_names=cat_names, **others)

    CocoDataset.COCOAPI = CheckedCOCO


def check_coco(contents: dict, path: str | Path) -> None:
    """Make sure that COCO annotations can be taken as they stand; boxes that reach out of their picture are counted.

    Raises:
        InputError: naming the first entry that cannot.
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
        (left, top, width, height), (picture_width, picture_height) = box, sizes[annotation['image_id']]
        if width < 0 or height < 0:
            raise InputError(f'{what} has bbox {box} of negative size: a box is left, top, width, height')
        if left >= picture_width or top >= picture_height or left + width < 0 or top + height < 0:
            raise InputError(
                f'{what} has bbox {box}, outside of its picture of {picture_width} x {picture_height} pixels'
            )
        outside += left < -1 or top < -1 or left + width > picture_width + 1 or top + height > picture_height + 1
    if outside:
        print_log(
            f'{path}: {outside} boxes reach out of their pictures; are they left, top, width, height?',
            logger='current',
            level=logging.WARNING,
        )


def _check_classes(names: list[str], classes: list[str], path: str) -> None:
    """MMDetection numbers classes in the order of the file, and leaves out, without a word, what it does not find."""
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
            f'{path} has its categories in another order than metainfo.classes of the dataset, the first '
            f'being {ordered[first]} for {classes[first]}: MMDetection would take one for the other'
        )
