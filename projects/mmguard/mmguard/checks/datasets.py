"""Checks of a run's datasets, before it starts and before its first step; images are checked in images.py."""

import inspect
import math
import os
from collections.abc import Iterable, Iterator, Sized
from importlib.util import find_spec
from itertools import chain

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset, InfiniteSampler
from mmengine.evaluator import Evaluator
from mmengine.fileio import list_from_file
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, METRICS, TRANSFORMS, DefaultScope, Registry
from mmengine.runner import Runner
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from ..errors import InputError, warn
from .classes import compare_classes, say_unlabelled
from .config_types import NODE_KEYS, definer, find_type, type_name
from .config_values import SPLITS, dataset_configs, metric_configs, transform_configs
from .folders import absent_files, compare_labels, read_labels
from .images import CheckedPipeline, large_images
from .models import check_padding

#: classes of MMDetection and MMSegmentation that list images; their files are checked before anything is built
DENSE = ('CocoDataset', 'CheckedCocoDataset', 'BaseSegDataset')
#: the same for MMPretrain; ImageNet and CIFAR100 are subclasses
CLASSIFICATION = ('CustomDataset', 'CIFAR10')
#: the same for distillation: it looks for broken files when it is read
UNLABELLED = 'UnlabelledImages'
#: package and name of a class that becomes one of mmguard -> module of that
CHECKED = {
    ('mmdet', 'CocoDataset'): 'coco',
    ('mmdet', 'CocoMetric'): 'coco',
    ('mmdet', 'VOCDataset'): 'voc',
    ('mmdet', 'XMLDataset'): 'voc',
    ('mmseg', 'IoUMetric'): 'segmentation',
    ('mmseg', 'CascadeEncoderDecoder'): 'segmentation',
}
#: so many label maps of a dataset are looked at for all classes
FEW_MAPS = 100
#: so many images of a segmentor's validation are looked at for their sizes
MANY_IMAGES = 1000
#: classes of datasets, metrics and transforms -> the package that they need, and what installs it
PACKAGES = {
    'Albu': ('albumentations', 'albumentations'),
    'Albumentations': ('albumentations', 'albumentations'),
    'CocoPanopticDataset': ('panopticapi', 'git+https://github.com/cocodataset/panopticapi.git'),
    'Corrupt': ('imagecorruptions', 'imagecorruptions'),
    'InstaBoost': ('instaboostfast', 'instaboostfast'),
    'LVISMetric': ('lvis', 'git+https://github.com/lvis-dataset/lvis-api.git'),
    'LVISV05Dataset': ('lvis', 'git+https://github.com/lvis-dataset/lvis-api.git'),
}
#: endings of annotation files that MMEngine reads with the code in them
RUN_CODE = ('.pkl', '.pickle', '.yaml', '.yml')


def use_checked_datasets(cfg: Config) -> None:
    """Have annotations checked and means explained: the classes of ``CHECKED`` in a config become those of mmguard.

    Subclasses of them stay as they are.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        model = [(cfg.model, find_type(cfg.model), 'model')] if cfg.get('model') else []
    for node, cls, _ in (*_nodes(cfg, DATASETS, SPLITS), *_nodes(cfg, METRICS, SPLITS), *model):
        module = CHECKED.get((getattr(cls, '__module__', '').partition('.')[0], getattr(cls, '__name__', '')))
        if module:
            # The full name, so that the config that MMEngine writes to the work folder needs no import.
            node['type'] = f'mmguard.checks.{module}.Checked{cls.__name__}'


def check_files(cfg: Config, *splits: str) -> None:
    """Check that dataloaders, annotation files and image folders are there, before anything is built.

    These datasets are checked if they are on a disk: CocoDataset, MMSegmentation's BaseSegDataset, MMPretrain's
    CustomDataset (ImageNet) and CIFAR10 (CIFAR100), UnlabelledImages of a distillation, and subclasses that list their
    images in the same way. Of CustomDataset, the list or the folders are read. Of other datasets, such as VOC's,
    ``ann_file`` must exist. ``splits`` are those that a run reads, of "train", "val" and "test".

    The classes of the datasets of all splits are compared, see :func:`mmguard.checks.classes.compare_classes`: those of
    a split that is not read now are those of a test later.

    Raises:
        InputError: naming the dataset, and what is missing; or an annotation file that may run code; or a class with
            two labels.
    """
    for split in splits:
        if split != 'val' and cfg.get(f'{split}_dataloader') is None:
            raise InputError(f'the config has no {split}_dataloader: it has nothing to {split}')
    if 'train' in splits:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            check_padding(cfg)
    for registry in (DATASETS, METRICS, TRANSFORMS):
        for _, cls, place in _nodes(cfg, registry, splits):
            for package, source in (PACKAGES[base.__name__] for base in cls.__mro__ if base.__name__ in PACKAGES):
                if find_spec(package) is None:
                    raise InputError(
                        f'{place}: {cls.__name__} needs the package {package}, which is not installed: pip install '
                        f'{source}'
                    )
    labels = []
    for node, cls, place in _nodes(cfg, DATASETS, splits):
        for key in ('ann_file', 'proposal_file'):
            if str(node.get(key)).lower().endswith(RUN_CODE):
                raise InputError(
                    f'{place}: {key} {node[key]} is a pickle or YAML, which MMEngine reads with the code in it: write '
                    'it as JSON'
                )
        reader = definer(cls, 'load_data_list')
        if node.get('backend_args'):
            continue
        if reader not in (*DENSE, *CLASSIFICATION, UNLABELLED):
            file = node.get('ann_file') or ''
            if '://' not in file and file and getattr(cls, '_join_prefix', None) is BaseDataset._join_prefix:
                file = os.path.join(node.get('data_root') or '', file)
                if not os.path.exists(file):
                    raise InputError(f'{place}: there is no file {file}: set data_root and ann_file')
            continue
        try:
            dataset = _unread(node, cls)
            if reader == UNLABELLED:
                dataset.check_folder()
        except (ValueError, AssertionError, TypeError, OSError) as error:
            if isinstance(error, TypeError) and 'lazy_init' in str(error):  # a subclass without this argument
                continue
            # MMSegmentation's assertions have no text.
            given = ', '.join(f'{key}={node.get(key)!r}' for key in ('data_root', 'ann_file', 'data_prefix'))
            unsaid = f'{cls.__name__} does not find its files: set {given} to files and folders that exist'
            raise InputError(f'{place}: {str(error) or unsaid}') from error
        if reader == UNLABELLED:
            continue
        if reader == 'CIFAR10':
            folder = os.path.join(dataset.data_prefix['root'], dataset.base_folder)
            if not dataset.download and not dataset._check_integrity():
                raise InputError(
                    f'{place}: the files of {cls.__name__} in {folder} are missing or damaged: unpack {dataset.url} '
                    'there, or set download=True'
                )
            continue
        annotations = dataset.ann_file
        if annotations and not _is_address(annotations) and not os.path.exists(annotations):
            raise InputError(f'{place}: there is no annotation file {annotations}: set data_root and ann_file')
        folder = dataset.data_prefix.get('img_path') or dataset.data_prefix.get('img')
        if folder and not _is_address(folder) and not os.path.isdir(folder):
            raise InputError(f'{place}: there is no image folder {folder}: set data_root and data_prefix')
        if _is_address(annotations) or _is_address(folder):
            continue
        if reader == 'CustomDataset':
            _check_labelled(dataset, place, cfg)
            head = cfg.get('model', {}).get('head')
            in_model = head.get('num_classes') if isinstance(head, dict) else None
            labels.append(read_labels(dataset, place, len(dataset.metainfo.get('classes') or ()) or in_model))
        elif reader == 'BaseSegDataset' and os.path.isfile(annotations) and not list_from_file(annotations):
            raise InputError(f'{place}: {annotations} lists no image')
        elif folder and not annotations and not any(name.endswith(dataset.img_suffix) for name in _file_names(folder)):
            there = ', '.join(sorted({os.path.splitext(name)[1] for name in _file_names(folder)}))[:100]
            raise InputError(
                f'{place}: the folder {folder} has no image *{dataset.img_suffix}: set data_prefix'
                + (f' or img_suffix, there are {there}' if there else '')
            )
    compare_labels(labels)
    compare_classes(_listed_classes(cfg))
    for node, _, place in _nodes(cfg, METRICS, splits):
        annotations = node.get('ann_file')
        on_disk = isinstance(annotations, str) and not node.get('backend_args') and not _is_address(annotations)
        if on_disk and not os.path.exists(annotations):
            raise InputError(f'{place}: there is no annotation file {annotations}: set ann_file')


def _unread(node: dict, cls: type) -> BaseDataset:
    """A dataset that joins its paths, and reads no more than the names of classes."""
    arguments = {key: value for key, value in node.items() if key not in NODE_KEYS}
    return cls(**{**arguments, 'pipeline': [], 'lazy_init': True})


def _listed_classes(cfg: Config) -> Iterator[tuple[str, object]]:
    """The places of the datasets of a config, parts of others too, and their classes."""
    for node, cls, place in _nodes(cfg, DATASETS, SPLITS):
        # With return_classes, a model reads the names, and labels have no meaning of their own.
        if issubclass(cls, BaseDataset) and not node.get('return_classes'):
            try:
                yield place, _unread(node, cls).metainfo.get('classes')
            except Exception:  # Any of another package. If the run reads this dataset, it is raised again then.
                continue


def _is_address(path: object) -> bool:
    """Whether MMEngine reads a path from a network, as https://..."""
    return isinstance(path, str) and '://' in path


def _file_names(folder: str) -> Iterator[str]:
    return chain.from_iterable(names for _, _, names in os.walk(folder, followlinks=True))


def _nodes(cfg: Config, registry: Registry, splits: Iterable[str]) -> list[tuple[dict, type, str]]:
    """The configs of the datasets, transforms or metrics of splits, with their classes and places in the config."""
    configs = {DATASETS: dataset_configs, METRICS: metric_configs, TRANSFORMS: transform_configs}[registry]
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        nodes = chain.from_iterable(configs(cfg, split) for split in splits)
        found = [(node, find_type(node, registry), place) for place, node in nodes]
    return [each for each in found if inspect.isclass(each[1])]


def _check_labelled(dataset: BaseDataset, place: str, cfg: Config) -> None:
    """Check that a dataset has labels, if a classifier is trained or evaluated with them."""
    split = place.partition('_')[0]
    evaluated = any(cls.__name__ != 'DumpResults' for _, cls, _ in _nodes(cfg, METRICS, [split]))
    classifier = type_name(cfg.get('model', {}).get('type')) == 'ImageClassifier'
    if not dataset.with_label and classifier and (split == 'train' or evaluated):
        raise InputError(
            f'{place} has no labels to {"train" if split == "train" else "evaluate"} with: leave out with_label=False '
            "and split='test'"
        )


#: heads whose num_classes is not the number of classes of the dataset: of boundaries, of words
OTHER_CLASSES = {'STDCHead', 'GroundingDINOHead'}


def check_built_datasets(runner: Runner) -> None:
    """Have a runner check each dataset that it builds, opening no image, and images and annotations when they are read.

    The runner builds its dataloaders with checks from here on. A hook would be too late: a loop by iterations of
    MMEngine 0.10 starts its data workers, each with a copy of the dataset, before it calls any hook.
    """
    build = runner.build_dataloader

    def build_checked(*args, **kwargs) -> DataLoader:
        dataloader = build(*args, **kwargs)
        if not isinstance(runner.model, nn.Module):  # A FlexibleRunner builds its model after its dataloaders.
            runner.model = runner.strategy.build_model(runner.model)
        for dataset in inner_datasets(dataloader.dataset):
            check_dataset(dataset, runner.model)
            dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset, ignored_labels(runner.model))
        check_batches(dataloader)
        return dataloader

    runner.build_dataloader = build_checked


def check_batches(dataloader: DataLoader) -> None:
    """Raise an InputError if the images of a dataloader are less than a batch."""
    sized = isinstance(dataloader.batch_sampler, Sized) and not isinstance(dataloader.sampler, InfiniteSampler)
    if sized and not len(dataloader):
        raise InputError(
            f'a dataloader has {len(dataloader.dataset)} images, which is less than a batch: set a smaller '
            'batch_size, or drop_last=False'
        )


def check_sizes(dataloader: DataLoader, model: nn.Module) -> None:
    """Raise an InputError if a segmentor's validation or test has batches of images of several sizes.

    Files are opened for their sizes only, ``MANY_IMAGES`` of them. Those of the most different sizes are loaded.
    """
    segments = any('SegDataPreProcessor' in [base.__name__ for base in type(each).__mro__] for each in model.modules())
    if not segments or getattr(dataloader.batch_sampler, 'batch_size', 1) == 1:
        return
    for dataset in inner_datasets(dataloader.dataset):
        if getattr(dataset, 'backend_args', None):
            continue
        sizes = {}
        for index in np.random.default_rng(0).permutation(len(dataset))[:MANY_IMAGES].tolist():
            try:
                with large_images(), Image.open(dataset.get_data_info(index)['img_path']) as image:
                    sizes[image.size] = index
            except (OSError, KeyError):  # CheckedPipeline names the file when it is read.
                return
        extremes = [
            choose(sizes, key=key) for choose in (min, max) for key in (math.prod, lambda size: size[0] / size[1])
        ]
        shapes = set()
        for size in dict.fromkeys(extremes):
            inputs = dataset[sizes[size]]['inputs']
            shapes.add(tuple(inputs[0].shape if isinstance(inputs, list) else inputs.shape)[-2:])  # of the first view
        if len(shapes) > 1:
            two = ' and '.join(f'{width} x {height}' for height, width in sorted(shapes)[:2])
            raise InputError(
                f'{_name(dataset)} has images of several sizes, such as {two}, which MMSegmentation cannot put into '
                'one batch outside of training: set batch_size=1 of their dataloader, or resize with keep_ratio=False'
            )


class MetricCheckHook(Hook):
    """Compares the annotations of metrics with those of the datasets, and sizes of images, before the first step.

    Raises:
        InputError: for the first thing that does not fit.
    """

    def before_run(self, runner: Runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if hasattr(loop, 'evaluator'):
                check_metrics(loop.evaluator, loop.dataloader.dataset)
                check_sizes(loop.dataloader, runner.model)


def check_metrics(evaluator: Evaluator, dataset: object) -> None:
    """Compare the annotations of the metrics of an evaluator with those of its dataset.

    Raises:
        InputError: for the first thing that does not fit.
    """
    for index, metric in enumerate(getattr(evaluator, 'metrics', ())):
        if hasattr(metric, 'check_datasets'):  # a CheckedCocoMetric
            # MMDetection's MultiDatasetsEvaluator has a metric for each dataset.
            each = hasattr(evaluator, 'dataset_prefixes')
            metric.check_datasets(list(inner_datasets(dataset.datasets[index] if each else dataset)))


def inner_datasets(dataset: object) -> Iterator[BaseDataset]:
    """The datasets that read data, below all that wrap them."""
    # MMEngine's wrapper for num_batch_per_epoch has the attributes of its dataset, but is no BaseDataset.
    dataset = getattr(dataset, '_dataset', dataset)
    if isinstance(dataset, BaseDataset):
        yield dataset
    for part in getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from inner_datasets(part)


def _name(dataset: BaseDataset) -> str:
    return f'{type(dataset).__name__} {dataset.ann_file or dataset.data_prefix.get("img_path")}'


def check_dataset(dataset: BaseDataset, model: nn.Module) -> None:
    """Check that the files of a dataset are there and that the model has its classes.

    Raises:
        InputError: naming the dataset and what does not fit.
    """
    name = _name(dataset)
    classes = dataset.metainfo.get('classes')
    if hasattr(dataset, 'label_map') and not classes:
        raise InputError(f'{name} has no classes: set its metainfo.classes to their names, in the order of the labels')
    if hasattr(dataset, 'label_map') and len(classes) == 1:
        raise InputError(
            f'{name} has only one class, {classes[0]}, so models learn nothing: add the background to metainfo.classes'
        )
    if classes and 'thing_classes' not in dataset.metainfo:
        for path, module in model.named_modules():
            number = getattr(module, 'num_classes', None)
            if number is None and getattr(module, 'to_onehot', False):
                raise InputError(
                    f'{path} of the model has no num_classes, which Mixup, CutMix and to_onehot need: set it to '
                    f'{len(classes)}'
                )
        for path, number in class_numbers(model):
            if number != len(classes):
                raise InputError(
                    f'{name} has {len(classes)} classes and {path} of the model {number}: make '
                    'num_classes of the model and metainfo.classes of the dataset agree'
                )
    if getattr(dataset, 'backend_args', None) or definer(type(dataset), 'load_data_list') in (
        *CLASSIFICATION,
        UNLABELLED,
    ):
        return  # not on a disk, or checked before
    transforms = dataset.pipeline.transforms
    masks = any(getattr(transform, 'with_mask', False) for transform in transforms)
    # The masks of a panoptic dataset are in image files.
    masks = masks and 'thing_classes' not in dataset.metainfo
    # MMDetection's Mask2Former for instances has a prefix of label maps, too, and does not read them.
    maps = hasattr(dataset, 'label_map') or any(getattr(transform, 'with_seg', False) for transform in transforms)
    files, labels = [], set()
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        labels.update(instance.get('bbox_label') for instance in info.get('instances', ()))
        files += [info.get('img_path'), info.get('seg_map_path') if maps else None]
        if masks and not all('mask' in instance for instance in info.get('instances', ())):
            raise InputError(
                f'{name}: an annotation of {info["img_path"]} has no segmentation, which LoadAnnotations '
                'with_mask=True needs'
            )
    absent = absent_files(file for file in files if file and isinstance(file, str) and not _is_address(file))
    if absent:
        raise InputError(f'{name} names {len(absent)} files that are not there, the first being {absent[0]}')
    if labels - {None} and 'thing_classes' not in dataset.metainfo:
        say_unlabelled(name, classes or (), labels, 'box')
    if hasattr(dataset, 'label_map'):
        _check_label_maps(dataset, name, ignored_labels(model))


def _check_label_maps(dataset: BaseDataset, name: str, ignored: Iterable[int]) -> None:
    """Look for a pixel of each class. If there are more than ``FEW_MAPS``, two classes are enough.

    Raises:
        InputError: if one class alone has pixels, in a dataset to learn from.
    """
    from mmcv.transforms import LoadAnnotations

    transforms = dataset.pipeline.transforms
    load = next((each for each in transforms if isinstance(each, LoadAnnotations)), None)
    # Transforms of the user may change labels.
    if load is None or not all(
        type(each).__module__.startswith(('mmcv.', 'mmseg.', 'mmdet.', 'mmattn', 'mmguard')) for each in transforms
    ):
        return
    classes, found, skipped = dataset.metainfo['classes'], set(), set()
    enough = len(classes) if len(dataset) <= FEW_MAPS else 2
    # In their order, the maps of a folder may begin with thousands that are alike.
    for index in np.random.default_rng(0).permutation(len(dataset)).tolist():
        try:
            label_map = load(dataset.get_data_info(index))['gt_seg_map']
        except Exception:  # of any kind, from another package; CheckedPipeline names the file when it is read
            return
        if label_map.ndim > 2:  # a map of colours, which CheckedPipeline refuses
            return
        labels = set(np.unique(label_map).tolist())
        skipped |= labels - set(range(len(classes)))
        found |= labels - skipped
        if len(found) >= enough or skipped - set(ignored):  # a label that CheckedPipeline refuses
            return
    if len(found) > 1:
        say_unlabelled(name, classes, found, 'pixel')
        return
    alone = ''.join(str(classes[label]) for label in found) or 'no class'
    others = ' and '.join(map(str, skipped))
    sentence = (
        f'the label maps of {name} have pixels of {alone} only'
        + f', and of {others}, which is ignored' * bool(others)
        + ': convert masks of 0 and 255 by tools/convert_data.py masks; set reduce_zero_label=False if 0 is a class'
    )
    if not dataset.test_mode:
        raise InputError(f'{sentence}; a model learns nothing from one class')
    warn(sentence)


def class_numbers(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Name and ``num_classes`` of each part of a model whose ``num_classes`` must be that of the dataset."""
    for path, module in model.named_modules():
        number = getattr(module, 'num_classes', None)
        if (
            ('head' in path or path.endswith('data_preprocessor'))
            and not {'rpn_head', 'semantic_head'} & set(path.split('.'))
            and not OTHER_CLASSES & {base.__name__ for base in type(module).__mro__}
            and isinstance(number, int)
        ):
            yield path, number


def ignored_labels(model: nn.Module) -> list[int]:
    """The labels that the heads of a segmentor ignore, ``ignore_index`` of their configs; 255 if none is set."""
    heads = [module for module in model.modules() if hasattr(module, 'num_classes')]
    labels = {getattr(head, 'ignore_index', None) for head in heads}
    return sorted(label for label in labels if isinstance(label, int)) or [255]
