"""Checks of a run's data that MMDetection and MMSegmentation leave out, or make too late."""

import inspect
import logging
import os
from collections.abc import Iterator

from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import DATASETS, DefaultScope
from torch import nn

from ..errors import InputError, describe
from .config_checks import dataset_configs, find_type


def use_checked_datasets(cfg: Config) -> None:
    """Have the annotations of a config's datasets checked: each CocoDataset becomes a CheckedCocoDataset.

    Subclasses of CocoDataset stay as they are.
    """
    for node, cls, _ in _datasets(cfg, 'train', 'val', 'test'):
        if cls.__name__ == 'CocoDataset' and cls.__module__ == 'mmdet.datasets.coco':
            # The full name, so that the config that MMEngine writes to the work folder needs no import.
            node['type'] = 'mmattn.engine.coco.CheckedCocoDataset'


def check_files(cfg: Config, *splits: str) -> None:
    """Check that annotation files and image folders are there, before anything is built or read.

    Only datasets on a disk that list their images as CocoDataset or MMSegmentation's BaseSegDataset does are checked.

    Args:
        cfg: of a run.
        splits: dataloaders that the run reads, of "train", "val" and "test".

    Raises:
        InputError: naming the dataset, and what is missing.
    """
    for node, cls, place in _datasets(cfg, *splits):
        reader = next((base.__name__ for base in cls.__mro__ if 'load_data_list' in vars(base)), None)
        if node.get('backend_args') or reader not in ('CocoDataset', 'BaseSegDataset'):
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


def _datasets(cfg: Config, *splits: str) -> Iterator[tuple[dict, type, str]]:
    """The configs of the datasets of dataloaders, with their classes and places in the config."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for split in splits:
            loader = cfg.get(f'{split}_dataloader') or {}
            for place, node in dataset_configs(loader.get('dataset'), f'{split}_dataloader.dataset'):
                cls = find_type(node, DATASETS)
                if inspect.isclass(cls):
                    yield node, cls, place


def _has_file(folder: str, suffix: str) -> bool:
    return any(name.endswith(suffix) for _, _, names in os.walk(folder, followlinks=True) for name in names)


class InputCheckHook(Hook):
    """Checks datasets before the first step, and images and annotations when they are read.

    The checks before the first step open no image.

    Raises:
        InputError: for the first thing that does not fit.
    """

    def before_run(self, runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            for dataset in inner_datasets(getattr(getattr(loop, 'dataloader', None), 'dataset', None)):
                check_dataset(dataset, runner.model)
                dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset)


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


class CheckedPipeline(Compose):
    """A dataset's pipeline that checks images and label maps when they are loaded.

    An error of a transform that loads a file becomes an InputError with the path of the file. An error of any other
    transform is raised as it is, and the log names the image.

    Args:
        pipeline: of the dataset.
        dataset: whose samples it takes.
    """

    def __init__(self, pipeline: Compose, dataset: BaseDataset) -> None:
        self.transforms = pipeline.transforms
        # Only label maps of MMSegmentation have a number per class.
        self.num_classes = len(dataset.metainfo['classes']) if hasattr(dataset, 'label_map') else None

    def __call__(self, data: dict) -> dict | None:
        from mmcv.transforms import LoadAnnotations, LoadImageFromFile

        for transform in self.transforms:
            path = data.get('img_path')
            if isinstance(transform, LoadAnnotations):
                path = data.get('seg_map_path') or path
            try:
                data = transform(data)
            except Exception as error:
                if isinstance(transform, (LoadImageFromFile, LoadAnnotations)):
                    raise InputError(f'{path} cannot be used: {describe(error)}') from error
                print_log(f'{type(transform).__name__} failed on {path}', logger='current', level=logging.ERROR)
                raise
            if data is None:
                return None
            if isinstance(transform, LoadImageFromFile):
                check_image(path)
            elif isinstance(transform, LoadAnnotations) and self.num_classes:
                self._check_labels(data)
        return data

    def _check_labels(self, data: dict) -> None:
        labels, path = data['gt_seg_map'], data['seg_map_path']
        if labels.ndim == 1 and 1 in data['ori_shape'] and labels.size == max(data['ori_shape']):
            # MMSegmentation has squeezed a map of one row or column.
            labels = data['gt_seg_map'] = labels.reshape(data['ori_shape'])
        if labels.shape != tuple(data['ori_shape']):
            raise InputError(
                f'{path} is {" x ".join(map(str, labels.shape))} and its image '
                f'{" x ".join(map(str, data["ori_shape"]))}: a label map has a number per pixel'
            )
        wrong = labels[(labels >= self.num_classes) & (labels != 255)]
        if len(wrong):
            raise InputError(
                f'{path} has label {wrong[0]} where the dataset has {self.num_classes} classes, counted '
                'from 0 (after reduce_zero_label), and 255 for what is ignored'
            )


def check_image(path: str | None) -> None:
    """Check that a JPEG or PNG file that OpenCV has read was not cut short. OpenCV up to 4.10 makes the rest grey.

    Args:
        path: what is not a file is left out.

    Raises:
        InputError: if it was.
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
            with Image.open(path) as image:
                image.load()  # Other bytes may follow a complete image.
        except (OSError, SyntaxError) as error:
            raise InputError(f'{path} cannot be used: the image is cut short ({describe(error)})') from error
