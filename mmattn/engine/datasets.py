"""Checks of a run's data that MMDetection and MMSegmentation leave out, or make too late."""

import inspect
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.fileio import get
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import DATASETS, METRICS, DefaultScope
from PIL import ExifTags, Image
from torch import nn

from ..errors import InputError, describe
from .config_checks import dataset_configs, find_type


def use_checked_datasets(cfg: Config) -> None:
    """Have annotations checked: each CocoDataset of a config becomes a CheckedCocoDataset, and so does each CocoMetric.

    Subclasses of CocoDataset and CocoMetric stay as they are.
    """
    splits = 'train', 'val', 'test'
    for node, cls, _ in (*_datasets(cfg, *splits), *_evaluators(cfg, *splits)):
        if cls.__name__ in ('CocoDataset', 'CocoMetric') and cls.__module__.startswith('mmdet.'):
            # The full name, so that the config that MMEngine writes to the work folder needs no import.
            node['type'] = f'mmattn.engine.coco.Checked{cls.__name__}'


def check_files(cfg: Config, *splits: str) -> None:
    """Check that dataloaders, annotation files and image folders are there, before anything is built or read.

    Only datasets on a disk that list their images as CocoDataset or MMSegmentation's BaseSegDataset does are checked.

    Args:
        cfg: of a run.
        splits: dataloaders that the run reads, of "train", "val" and "test".

    Raises:
        InputError: naming the dataset, and what is missing.
    """
    for split in splits:
        if split != 'val' and cfg.get(f'{split}_dataloader') is None:
            raise InputError(f'the config has no {split}_dataloader: it has nothing to {split}')
    for node, cls, place in _datasets(cfg, *splits):
        reader = next((base.__name__ for base in cls.__mro__ if 'load_data_list' in vars(base)), None)
        if node.get('backend_args') or reader not in ('CocoDataset', 'CheckedCocoDataset', 'BaseSegDataset'):
            continue
        arguments = {key: value for key, value in node.items() if key not in ('type', '_scope_')}
        try:  # A dataset joins its paths, and reads nothing yet.
            dataset = cls(**{**arguments, 'pipeline': [], 'lazy_init': True})
        except ValueError as error:
            raise InputError(f'{place}: {error}') from error
        except TypeError:  # a subclass of somebody's without lazy_init
            continue
        annotations = dataset.ann_file
        if annotations and not os.path.exists(annotations):
            raise InputError(f'{place}: there is no annotation file {annotations}: set data_root and ann_file')
        folder = dataset.data_prefix.get('img_path') or dataset.data_prefix.get('img')
        if folder and not os.path.isdir(folder):
            raise InputError(f'{place}: there is no image folder {folder}: set data_root and data_prefix')
        if folder and not annotations and not _has_file(folder, dataset.img_suffix):
            raise InputError(f'{place}: the folder {folder} has no image *{dataset.img_suffix}: set data_prefix')
    for node, _, place in _evaluators(cfg, *splits):
        annotations = node.get('ann_file')
        if isinstance(annotations, str) and not node.get('backend_args') and not os.path.exists(annotations):
            raise InputError(f'{place}: there is no annotation file {annotations}: set ann_file')


def _datasets(cfg: Config, *splits: str) -> Iterator[tuple[dict, type, str]]:
    """The configs of the datasets of dataloaders, with their classes and places in the config."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for split in splits:
            loader = cfg.get(f'{split}_dataloader') or {}
            for place, node in dataset_configs(loader.get('dataset'), f'{split}_dataloader.dataset'):
                cls = find_type(node, DATASETS)
                if inspect.isclass(cls):
                    yield node, cls, place


def _evaluators(cfg: Config, *splits: str) -> Iterator[tuple[dict, type, str]]:
    """The configs of the metrics of evaluators, with their classes and places in the config."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for split in splits:
            place = f'{split}_evaluator'
            metrics = cfg.get(place)
            metrics = metrics.get('metrics', metrics) if isinstance(metrics, dict) else metrics
            for node in metrics if isinstance(metrics, (list, tuple)) else [metrics]:
                cls = find_type(node, METRICS) if isinstance(node, dict) else None
                if inspect.isclass(cls):
                    yield node, cls, place


def _has_file(folder: str, suffix: str) -> bool:
    return any(name.endswith(suffix) for _, _, names in os.walk(folder, followlinks=True) for name in names)


#: heads whose num_classes is not the number of classes of the dataset: of boundaries, of words
OTHER_CLASSES = {'STDCHead', 'GroundingDINOHead'}


class InputCheckHook(Hook):
    """Checks datasets before the first step, and images and annotations when they are read.

    The checks before the first step open no image.

    Raises:
        InputError: for the first thing that does not fit.
    """

    def before_run(self, runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            datasets = list(inner_datasets(getattr(getattr(loop, 'dataloader', None), 'dataset', None)))
            for dataset in datasets:
                check_dataset(dataset, runner.model)
            evaluator = getattr(loop, 'evaluator', None)
            for index, metric in enumerate(getattr(evaluator, 'metrics', ())):
                if hasattr(metric, 'check_datasets'):  # a CheckedCocoMetric
                    # MMDetection's MultiDatasetsEvaluator has a metric for each dataset.
                    each = hasattr(evaluator, 'dataset_prefixes')
                    part = inner_datasets(loop.dataloader.dataset.datasets[index]) if each else datasets
                    metric.check_datasets(list(part))
            for dataset in datasets:
                dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset, ignored_labels(runner.model))


def inner_datasets(dataset: object) -> Iterator[BaseDataset]:
    """The datasets that read data, below all that wrap them."""
    if isinstance(dataset, BaseDataset):
        yield dataset
    for part in getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from inner_datasets(part)


def check_dataset(dataset: BaseDataset, model: nn.Module) -> None:
    """Check that a dataset is not empty, that its files are there and that the model has its classes.

    Raises:
        InputError: naming the dataset and what does not fit.
    """
    name = f'{type(dataset).__name__} {dataset.ann_file or dataset.data_prefix.get("img_path")}'
    if not len(dataset):
        raise InputError(f'{name} has no image: it lists none, or filter_cfg leaves them all out')
    classes = dataset.metainfo.get('classes')
    if hasattr(dataset, 'label_map') and not classes:
        raise InputError(f'{name} has no classes: set its metainfo.classes to their names, in the order of the labels')
    if classes and 'thing_classes' not in dataset.metainfo:
        for path, module in model.named_modules():
            number = getattr(module, 'num_classes', None)
            if (
                'head' in path
                and not {'rpn_head', 'semantic_head'} & set(path.split('.'))
                and not OTHER_CLASSES & {base.__name__ for base in type(module).__mro__}
                and isinstance(number, int)
                and number != len(classes)
            ):
                raise InputError(
                    f'{name} has {len(classes)} classes and {path} of the model {number}: make '
                    'num_classes of the model and metainfo.classes of the dataset agree'
                )
    if getattr(dataset, 'backend_args', None):
        return  # not on a disk
    masks = any(getattr(transform, 'with_mask', False) for transform in dataset.pipeline.transforms)
    absent, folders = [], {}
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        for path in (info.get('img_path'), info.get('seg_map_path')):
            if path and isinstance(path, str):
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


def ignored_labels(model: nn.Module) -> list[int]:
    """The labels that the heads of a segmentor ignore, ``ignore_index`` of their configs; 255 if there is none."""
    heads = [module for module in model.modules() if hasattr(module, 'num_classes')]
    labels = {getattr(head, 'ignore_index', None) for head in heads}
    return sorted(label for label in labels if isinstance(label, int)) or [255]


class CheckedPipeline(Compose):
    """A dataset's pipeline that checks images and label maps when they are loaded, by transforms within others too.

    An error of a transform that loads a file becomes an InputError with the path of the file. An error of any other
    transform is raised as it is, and the log names the image.

    Args:
        pipeline: of the dataset. Its transforms that load files are replaced.
        dataset: whose samples it takes.
        ignored: labels that are no classes.
    """

    def __init__(self, pipeline: Compose, dataset: BaseDataset, ignored: Sequence[int] = (255,)) -> None:
        self.transforms = pipeline.transforms
        check = None
        if hasattr(dataset, 'label_map'):  # Only label maps of MMSegmentation have a number per class.
            check = partial(_check_labels, num_classes=len(dataset.metainfo['classes']), ignored=ignored)
        _check_loading(self.transforms, check)

    def __call__(self, data: dict) -> dict | None:
        for transform in self.transforms:
            path = data.get('img_path')
            try:
                data = transform(data)
            except InputError:
                raise
            except Exception:
                print_log(f'{type(transform).__name__} failed on {path}', logger='current', level=logging.ERROR)
                raise
            if data is None:
                return None
        return data


def _check_loading(transforms: list, check: Callable | None) -> None:
    """Replace the transforms of a list that load files, and those within its transforms, by those that check them."""
    from mmcv.transforms import LoadAnnotations, LoadImageFromFile

    for index, transform in enumerate(transforms):
        if isinstance(transform, LoadImageFromFile):
            transforms[index] = partial(_load_image, transform)
        elif isinstance(transform, LoadAnnotations):
            transforms[index] = partial(_load_annotations, transform, check)
        for name in ('transforms', 'subroutines'):  # the second are TestTimeAug's
            inner = getattr(transform, name, None)
            inner = getattr(inner, 'transforms', inner)
            if isinstance(inner, list):
                _check_loading(inner, check)


def _load(function: Callable, argument: object, path: str | None) -> object:
    """Call a function that reads a file. What it raises becomes an InputError with the path."""
    try:
        return function(argument)
    except Exception as error:
        raise InputError(f'{path} cannot be used: {describe(error)}') from error


def _load_image(transform: Callable, data: dict) -> dict | None:
    path = data.get('img_path')
    data = _load(transform, data, path)
    if data is not None and path and os.path.isfile(path):
        check_image(path)
        check_header(path, data, getattr(transform, 'imdecode_backend', None))
    return data


def _load_annotations(transform: Callable, check: Callable | None, data: dict) -> dict:
    path = data.get('seg_map_path')
    if check is None or path is None:
        return _load(transform, data, path or data.get('img_path'))
    content = _load(partial(get, backend_args=transform.backend_args), path, path)
    check_label_map(path, content, transform.imdecode_backend)
    data = _load(transform, data, path)
    check(data)
    return data


def check_label_map(path: str, content: bytes, backend: str) -> None:
    """Check that a label map is read as it was written: MMSegmentation casts its labels to 8 bits.

    Args:
        path: of the file, for the message.
        content: of the file.
        backend: what decodes it, ``imdecode_backend`` of the transform.

    Raises:
        InputError: for labels that are no whole numbers from 0 to 255, and for files that do not keep labels.
    """
    mode, form, coding, orientation = _header(io.BytesIO(content))
    if form in ('JPEG', 'MPO'):
        raise InputError(f'{path} is a JPEG file, which does not keep the labels: use PNG')
    if 'L;2' in coding or 'L;4' in coding or mode == '1' and backend != 'pillow':
        raise InputError(f'{path} has fewer than 8 bits per pixel, which are read as shades of grey: write it with 8')
    if orientation > 1:
        raise InputError(
            f'{path} has EXIF orientation {orientation}, by which label maps are not turned: turn its pixels instead'
        )
    if mode is None or mode[0] in 'IF':
        from mmcv import imfrombytes

        labels = _load(partial(imfrombytes, flag='unchanged', backend=backend), content, path)
        with np.errstate(invalid='ignore'):
            wrong = () if labels is None else labels[labels != labels.astype(np.uint8)]
        if len(wrong):
            raise InputError(
                f'{path} has label {wrong[0]}, but labels are whole numbers from 0 to 254, and 255 is what is ignored'
            )


def _check_labels(data: dict, num_classes: int, ignored: Sequence[int]) -> None:
    labels, path = data['gt_seg_map'], data['seg_map_path']
    if labels.ndim == 1 and 1 in data['ori_shape'] and labels.size == max(data['ori_shape']):
        # MMSegmentation has squeezed a map of one row or column.
        labels = data['gt_seg_map'] = labels.reshape(data['ori_shape'])
    if labels.shape != tuple(data['ori_shape']):
        orientation = _header(data['img_path']).orientation
        turned = f', as it is read (its EXIF orientation is {orientation})' if orientation > 1 else ''
        raise InputError(
            f'{path} is {" x ".join(map(str, labels.shape))} and its image '
            f'{" x ".join(map(str, data["ori_shape"]))}{turned}: a label map has a number per pixel'
        )
    wrong = labels[labels >= num_classes]
    for label in ignored:
        wrong = wrong[wrong != label]
    if len(wrong):
        raise InputError(
            f'{path} has label {wrong[0]} where the dataset has {num_classes} classes, counted '
            f'from 0 (after reduce_zero_label), and {" and ".join(map(str, ignored))} for what is ignored'
        )


def check_header(path: str, data: dict, backend: str | None) -> None:
    """Compare the size of an image with the one that its annotations give.

    Images are used as they are displayed, turned by their EXIF orientation, and annotations are of the turned image.
    The log names an image of each folder that is turned and keeps its size, for then the size cannot tell.

    Args:
        path: of the image.
        data: with "ori_shape" of the image as it was read, and "height" and "width" where the annotations give them.
        backend: what has decoded it, ``imdecode_backend`` of the transform.

    Raises:
        InputError: if the sizes differ, or if the image has more than 8 bits, which Pillow would cut off.
    """
    mode, *_, orientation = _header(path)
    if backend == 'pillow' and mode and mode[0] in 'IF':
        raise InputError(f"{path} has more than 8 bits per channel: read it with imdecode_backend='cv2'")
    (height, width), given = data['ori_shape'], (data.get('height'), data.get('width'))
    if all(given) and given != (height, width):
        raise InputError(
            f'{path} is {width} x {height} pixels as it is read, but {given[1]} x {given[0]} in its annotations: '
            + (
                f'its EXIF orientation is {orientation}, so they must be of the image as it is displayed, or for '
                "color_type='color_ignore_orientation' of LoadImageFromFile as it is stored"
                if orientation > 4 and given == (width, height)
                else 'correct the width and height that they give, or the file name'
            )
        )
    folder = os.path.dirname(path)
    if (1 < orientation < 5 or orientation > 4 and width == height) and folder not in _folders_in_log:
        _folders_in_log.add(folder)
        print_log(
            f'{path} has EXIF orientation {orientation}, which does not change its size: annotations in {folder} must '
            "be of the images as they are displayed, or as they are stored for color_type='color_ignore_orientation'",
            logger='current',
            level=logging.WARNING,
        )


_folders_in_log: set[str] = set()


class _Header(NamedTuple):
    mode: str | None = None
    form: str | None = None
    coding: str = ''
    orientation: int = 1  # EXIF's, 1 to 8


def _header(file: str | io.BytesIO) -> _Header:
    """What Pillow reads in the first bytes of an image file; the defaults if it cannot read it."""
    try:
        with Image.open(file) as image:
            # Pillow would read a whole PNG file to find EXIF data at its end.
            exif = image.getexif() if image.format != 'PNG' or 'exif' in image.info else {}
            orientation = exif.get(ExifTags.Base.Orientation)
            known = orientation if orientation in range(1, 9) else 1
            return _Header(image.mode, image.format, str(image.tile), known)
    except Exception:  # Pillow raises several kinds. It does not read all formats, and not all that cameras write.
        return _Header()


def check_image(path: str) -> None:
    """Check that a JPEG or PNG file that OpenCV has read was not cut short. OpenCV up to 4.10 makes the rest grey.

    Args:
        path: of a file.

    Raises:
        InputError: if it was.
    """
    with open(path, 'rb') as file:
        start = file.read(2)
        file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
        end = file.read()
    if start == b'\xff\xd8' and not end.endswith(b'\xff\xd9') or start == b'\x89P' and b'IEND' not in end:
        try:
            with Image.open(path) as image:
                image.load()  # Other bytes may follow a complete image.
        except (OSError, SyntaxError) as error:
            raise InputError(f'{path} cannot be used: the image is cut short ({describe(error)})') from error
