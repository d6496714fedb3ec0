"""Mistakes in a config, found before anything is built from it."""

import difflib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from math import inf
from multiprocessing import get_all_start_methods
from numbers import Integral, Number
from pathlib import Path

import torch
from mmengine import registry as registries
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, EMAHook
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import MODELS, TASK_UTILS, DefaultScope, Registry
from mmengine.runner import FlexibleRunner, Runner
from torch.utils.data import DataLoader

from ..arguments import check_choice, check_finite, check_flags, check_rates, check_whole
from ..errors import InputError, near_misses, warn
from ..packages import PARAMWISE_KEYS
from .channels import check_channels
from .config_types import NODE_KEYS, bases, find_type, is_of, listed, loads_strictly, nested, places_of
from .models import check_class_weights, check_preprocessor, check_windows
from .monitors import check_monitors, metric_names

SPLITS = ('train', 'val', 'test')
#: what a Runner takes from a config: its arguments, and what it reads from the config beside them
KNOWN_KEYS = {
    *inspect.signature(Runner).parameters,
    *inspect.signature(FlexibleRunner).parameters,
    *(
        'custom_imports',
        'runner_type',
        'model_wrapper_cfg',
        'activation_checkpointing',
        'find_unused_parameters',
        'sync_bn',
        'efficient_conv_bn_eval',
    ),
} - {'cfg'}
#: keys of a config that are dicts, beside dataloaders and loops
DICTS = (
    *('model', 'data_preprocessor', 'tta_model', 'optim_wrapper', 'default_hooks', 'auto_scale_lr', 'randomness'),
    *('env_cfg', 'log_processor', 'strategy', 'model_wrapper_cfg'),
)
#: keys of a dataloader that MMEngine reads itself; torch's DataLoader takes the others
MMENGINE_LOADER_KEYS = {'num_batch_per_epoch', 'disable_subprocess_warning'}
#: places of a model whose types must be in MODELS
MODULE_PLACE = re.compile(r'model|data_preprocessor|model\..*(backbone|neck|data_preprocessor|loss\w*|head)(\[\d+\])*')
#: places of a model whose dicts must have a type
PART_PLACE = re.compile(
    r'model\.(roi_head\.)?(backbone|neck|\w*head)(\[\d+\])*'
    r'|model\..*\.(loss(_\w+)?|assigner|sampler|\w+_generator|bbox_coder|\w*roi_extractor|roi_layer)(\[\d+\])*'
)
#: places of a model whose types must be in TASK_UTILS
TASK_PLACE = re.compile(r'model\..*\.(assigner|sampler|anchor_generator|prior_generator|bbox_coder)')
#: places of RandomBatchAugment's arguments in a classifier of MMPretrain
MIXING_PLACE = re.compile(r'model\.train_cfg|(model\.)?data_preprocessor\.batch_augments')
#: what is said of a dict without a type: most often it changes a part that the configs in _base_ do not have
NO_TYPE = '{} has no type, and inherits none: leave it out if the configs in _base_ have no such part, or set its type'
#: types of optim_wrapper.clip_grad -> torch's function, and the name of its limit
CLIPPING = {
    'norm': (torch.nn.utils.clip_grad_norm_, 'max_norm'),
    'value': (torch.nn.utils.clip_grad_value_, 'clip_value'),
}
#: whole numbers of a dataloader -> the least
LOADER_NUMBERS = dict(batch_size=1, num_workers=0, prefetch_factor=1, num_batch_per_epoch=1)
#: switches of a dataloader
LOADER_FLAGS = ('persistent_workers', 'pin_memory', 'drop_last')
#: arguments of a dataloader that torch compares with each other
LOADER_VALUES = ('batch_size', 'num_workers', 'prefetch_factor', 'persistent_workers', 'timeout')
#: what MMEngine reads of env_cfg
ENV_KEYS = {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'}
#: the largest seed that NumPy takes
MAX_SEED = 2**32 - 1
#: how similar a misspelt key is to the known one, in difflib's measure
SIMILAR = 0.88
#: the same of a key that nothing in the files of the config reads
SIMILAR_UNREAD = 0.8
#: packages whose types are often named without them
PACKAGES = ('mmattn', 'mmdet', 'mmseg', 'mmpretrain')
#: top-level keys of OpenMMLab's packages before MMEngine -> what has their place
OLD_KEYS = dict(
    checkpoint_config='default_hooks.checkpoint',
    data='train_dataloader, val_dataloader and test_dataloader',
    evaluation='val_evaluator and train_cfg.val_interval',
    fp16="optim_wrapper.type='AmpOptimWrapper'",
    log_config='default_hooks.logger',
    lr_config='param_scheduler',
    optimizer='optim_wrapper.optimizer',
    optimizer_config='optim_wrapper.clip_grad',
    resume_from='load_from and resume=True',
    runner='train_cfg',
    seed='randomness.seed',
    total_epochs='train_cfg.max_epochs',
)


def check_config(cfg: Config, path: str | Path) -> None:
    """Find the mistakes of a config that can be found without building it.

    Types are looked up in the registries, and arguments in the signatures of the classes. Where a class takes
    ``**kwargs``, only arguments that look misspelt are refused. Torch's optimizers, batch augmentations and mmattn's
    backbones are built, the backbones without memory for their weights, so that their own checks run.

    Raises:
        InputError: for the first mistake, with the file and the place in the config.
    """
    try:
        _check_keys(cfg)
        _check_deletions(cfg)
        scope = cfg.get('default_scope') or 'mmengine'
        if find_spec(scope) is None:
            return  # The types of a package that is missing are not known.
        with DefaultScope.overwrite_default_scope(scope):
            _check_modules(cfg)
            _check_type(cfg.get('tta_model'), MODELS, 'tta_model')
            _check_data(cfg)
            _check_run(cfg)
    except InputError as error:
        scope = '' if cfg.get('default_scope') else ' (it has no default_scope)'
        raise InputError(f'{path}{scope}: {error}') from error.__cause__


def _check_deletions(cfg: Config) -> None:
    """Refuse what is left of ``_delete_=True``: MMEngine takes it out where the base has a dict."""
    for key in sorted(KNOWN_KEYS & set(cfg)):
        for place, node in nested(cfg[key], key):
            if '_delete_' in node:
                raise InputError(f'{place} has _delete_, but its base has no dict there: leave it out')


def _check_keys(cfg: Config) -> None:
    """Refuse top-level keys that look misspelt, and values of a kind that MMEngine does not take."""
    read = {key: value for key, value in cfg.items() if key in KNOWN_KEYS}
    for key in set(cfg) - KNOWN_KEYS - {'rows'}:  # which runs/rows.py reads
        near = difflib.get_close_matches(key, KNOWN_KEYS, n=1, cutoff=SIMILAR)
        # model_small, mode and the like are variables, and so is custom_hook in custom_hooks=[custom_hook].
        if near and not key.startswith(near[0]) and len(key) > 5 and not any(places_of(cfg[key], read, '')):
            raise InputError(f'nothing reads the key {key}: did you mean {near[0]}?')
        if _is_only_set(key, cfg.text or ''):
            near = difflib.get_close_matches(key, KNOWN_KEYS, n=1, cutoff=SIMILAR_UNREAD)
            if near:
                raise InputError(f'nothing reads the key {key}: did you mean {near[0]}?')
            if key in OLD_KEYS:  # some configs of the packages have them, too
                warn(f'Nothing reads the key {key} of the config, which is of older versions: set {OLD_KEYS[key]}')
        elif _comes_too_late(key, cfg, read):
            warn(f'{key} has no effect: the files in _base_ have read its old value. Set the keys that have that value')
    for key in (*DICTS, *(f'{split}_{what}' for split in SPLITS for what in ('dataloader', 'cfg'))):
        _check_dict(cfg.get(key), key)
    if cfg.get('sync_bn') not in (None, 'torch', 'mmcv'):
        raise InputError(f'sync_bn must be "torch" or "mmcv", whose SyncBN replaces batch norms, not {cfg.sync_bn!r}')
    if cfg.get('model') is None:
        raise InputError('there is no model: this is not a config of a detector, segmentor or classifier')
    if cfg.model.get('type') is None:
        raise InputError('model has no type')
    for key, part in cfg.model.items():
        for place, each in listed(part, f'model.{key}') if key.endswith(('backbone', 'neck', 'head')) else ():
            _check_dict(each, place)
    for split, last in zip(SPLITS, ('optim_wrapper', 'val_evaluator', 'test_evaluator')):
        keys = f'{split}_dataloader', f'{split}_cfg', last
        absent = [key for key in keys if cfg.get(key) is None]
        if 0 < len(absent) < len(keys):
            raise InputError(f'{" and ".join(absent)} must be set too, or none of {", ".join(keys)}')


def _is_only_set(key: str, text: str) -> bool:
    """Whether the files of a config set a variable, and nowhere have it as a value, as in ``optimizer=optimizer``."""
    code, name = re.sub(r'#.*', '', text), re.escape(key)
    is_set = re.search(rf'^{name}\s*=', code, re.MULTILINE)
    return bool(is_set) and not re.search(rf'(?<![\w\'"])(?<!(?<!_base_)\.){name}\b(?!\s*=[^=])', code)


def _comes_too_late(key: str, cfg: Config, read: dict) -> bool:
    """Whether a file sets a variable that only its bases have as a value, so that no key has the new one. MMEngine's
    text of a config begins with its bases."""
    bases, _, own = (cfg.text or '').rpartition(f'{cfg.filename}\n')
    if not _is_only_set(key, own) or _is_only_set(key, f'{bases}\n{key} = 0'):
        return False
    return not any([*places_of(cfg[key], read, ''), *places_of({key: cfg[key]}, read, '')])


def _check_dict(node: object, place: str) -> None:
    """Refuse text, numbers and lists where a dict is needed. None and objects, which need no building, may be."""
    if isinstance(node, (str, bytes, bool, Number, list, tuple)):
        raise InputError(f'{place} must be a dict, not {repr(node)[:100]}')


def _check_modules(cfg: Config) -> None:
    """Check the model's config: types and arguments of all modules in it, then the channels between them."""

    def has_modules(_: dict, key: str) -> bool:
        # norm_cfg, init_cfg and the like are read by functions with keys of their own
        return not key.endswith('_cfg') or key in ('train_cfg', 'test_cfg')

    modules = [module for key in ('model', 'data_preprocessor') for module in nested(cfg.get(key), key, has_modules)]
    for where, module in modules:
        if MIXING_PLACE.fullmatch(where) and difflib.get_close_matches('augments', module) and find_spec('mmpretrain'):
            _check_mixing(module, where)
        elif module.get('type') is not None:
            registry = MODELS if MODULE_PLACE.fullmatch(where) or find_type(module) else TASK_UTILS
            if registry is MODELS or TASK_PLACE.fullmatch(where) or find_type(module, TASK_UTILS):
                _check_type(module, registry, where, inner=where.count('.') > 1)
            _check_lora(module, where)
        # MMPretrain's classifiers have a default.
        elif (
            PART_PLACE.fullmatch(where) or where.endswith('data_preprocessor') and is_of(cfg.model, 'mmdet.', 'mmseg.')
        ):
            raise InputError(NO_TYPE.format(where))
    for where, module in modules:
        if isinstance(module.get('backbone'), dict) or where == 'model' and 'backbone' in module:
            check_channels(module, where)
    check_class_weights(cfg.model)
    check_windows(cfg.model)
    check_preprocessor(cfg)


def _check_lora(node: dict, place: str) -> None:
    """Refuse LoRA that LoRAModel cannot build or save, or that ``frozen_stages`` would freeze."""
    module = node.get('module')
    if bases(node)[:1] != ['LoRAModel']:
        return
    _construct(_check_lora_numbers, place, cfg=node)
    if not isinstance(module, dict) or not loads_strictly(find_type(module)):
        return
    if 'norm_eval' in _arguments(find_type(module))[0] and not module.get('norm_eval'):
        raise InputError(f'{place}.module must have norm_eval=True: LoRAModel does not save statistics of batch norms')
    if module.get('frozen_stages', -1) >= 0:
        raise InputError(f'{place}.module.frozen_stages would freeze matrices of LoRA: leave it out')
    _construct(MODELS.build, place, cfg=deepcopy(dict(node, module=dict(module, init_cfg=None))))


def _check_lora_numbers(cfg: Mapping[str, object]) -> None:
    """Check the numbers in the config of a LoRAModel, whose rank is 0 by default.

    Raises:
        ValueError: if one is impossible, or nothing would be trained.
    """
    targets = cfg.get('targets')
    if not isinstance(targets, (list, tuple)) or not all(isinstance(target, Mapping) for target in targets):
        raise ValueError(f"targets must be a list of layers, such as [dict(type='qkv', rank=4)], not {targets!r}")
    for i, target in enumerate(targets):
        given = {'rank': 0, 'alpha': 1, 'drop_rate': 0.0, **cfg, **target}
        check_whole(f'targets[{i}]: rank', given['rank'])
        check_finite(f'targets[{i}]: alpha', given['alpha'])
        check_rates(**{f'targets[{i}]: drop_rate': given['drop_rate']})
        if not given['alpha']:
            raise ValueError(f'targets[{i}]: alpha must not be 0, which trains nothing')


def _check_mixing(node: dict, place: str) -> None:
    """Check the batch augmentations of a classifier, such as Mixup and CutMix, by building them."""
    from mmpretrain.models.utils.batch_augments import RandomBatchAugment
    from mmpretrain.registry import BATCH_AUGMENTS

    _check_arguments(node, _arguments(RandomBatchAugment)[0], False, place)
    for where, augment in listed(node['augments'], f'{place}.augments'):
        _check_type(augment, BATCH_AUGMENTS, where)
        _construct(BATCH_AUGMENTS.build, where, cfg=deepcopy(augment))
    _construct(RandomBatchAugment, place, **deepcopy(dict(node)))


def _check_data(cfg: Config) -> None:
    for split in SPLITS:
        place, loader = f'{split}_dataloader', cfg.get(f'{split}_dataloader')
        if loader is None:
            continue
        known = {*inspect.signature(DataLoader).parameters} | MMENGINE_LOADER_KEYS
        _check_arguments(loader, known, False, place)
        for where, dataset in listed(loader.get('dataset'), f'{place}.dataset'):
            _check_dict(dataset, where)
        for where, dataset in dataset_configs(cfg, split):
            for step, transform in listed(dataset.get('pipeline'), f'{where}.pipeline'):
                _check_dict(transform, step)
            _check_type(dataset, registries.DATASETS, where)
            for step, transform in nested(dataset.get('pipeline'), f'{where}.pipeline', wraps_transforms):
                _check_mosaic(_check_type(transform, registries.TRANSFORMS, step), step, dataset)
        for key in ('sampler', 'batch_sampler'):
            cls = _check_type(loader.get(key), registries.DATA_SAMPLERS, f'{place}.{key}')
            _check_whole_arguments(loader.get(key), cls, f'{place}.{key}')
            if isinstance(loader.get(key), dict):
                _check_seed(loader[key], f'{place}.{key}')
        for key, least in LOADER_NUMBERS.items():
            if loader.get(key) is not None:
                _in_a_sentence(check_whole, f'{place}.{key}', loader[key], least)
        for key in LOADER_FLAGS:
            _check_flag(loader, place, key)
        _in_a_sentence(check_finite, f'{place}.timeout', loader.get('timeout', 0), 0)
        plain = {key: loader[key] for key in LOADER_VALUES if key in loader}
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about the number of workers
            _construct(DataLoader, place, dataset=[None], **plain)


def _check_mosaic(cls: Callable, place: str, dataset: dict) -> None:
    """Refuse transforms that take images from a dataset, such as Mosaic, where they get none, or would lose masks."""
    if not inspect.isclass(cls):
        return
    name = cls.__name__
    names = ('get_indexes', 'get_indices')  # in MMDetection, in MMSegmentation
    choose = next((vars(base)[key] for base in inspect.getmro(cls) for key in names if key in vars(base)), None)
    # MMCV wraps it for randomness.
    if choose is None or 'dataset' not in inspect.signature(getattr(choose, 'func', choose)).parameters:
        return  # MMDetection's CachedMosaic and the like take images that they got before.
    if 'MultiImageMixDataset' not in bases(dataset, registries.DATASETS) or '.transforms' in place:
        raise InputError(
            f'{place} ({name}) takes other images from a MultiImageMixDataset: put the dataset and the transforms that '
            f'load it into one, and {name} directly into the pipeline of that'
        )
    if name in ('Mosaic', 'MixUp') and any(node.get('with_mask') for _, node in nested(dataset, place)):
        raise InputError(f'{place} ({name}) does not change masks: use Cached{name}, or load no masks')


def wraps_transforms(transform: dict, key: str) -> bool:
    """Whether a key of a transform has others of the registry, as in MMCV and mmattn. Albu's are of another package."""
    return key == 'transforms' and is_of(transform, 'mmcv.', 'mmattn', registry=registries.TRANSFORMS)


def dataset_configs(cfg: Config, split: str) -> Iterator[tuple[str, dict]]:
    """The configs of the datasets of a split, with those that they wrap, each with its place in the whole config."""
    loader = cfg.get(f'{split}_dataloader') or {}
    return nested(loader.get('dataset'), f'{split}_dataloader.dataset', lambda _, key: key in ('dataset', 'datasets'))


def transform_configs(cfg: Config, split: str) -> Iterator[tuple[str, dict]]:
    """The configs of the transforms of a split, with those that they wrap, each with its place in the whole config."""
    for place, dataset in dataset_configs(cfg, split):
        yield from nested(dataset.get('pipeline'), f'{place}.pipeline', wraps_transforms)


def metric_configs(cfg: Config, split: str) -> Iterator[tuple[str, dict]]:
    """The configs of the metrics of "val" or "test", each with its place in the whole config."""
    place = f'{split}_evaluator'
    evaluator = cfg.get(place)
    if isinstance(evaluator, dict) and 'metrics' in evaluator:
        evaluator, place = evaluator['metrics'], f'{place}.metrics'
    for where, metric in listed(evaluator, place):
        _check_dict(metric, where)
        if isinstance(metric, dict):
            yield where, metric


def _check_run(cfg: Config) -> None:
    _check_environment(cfg)
    _check_loops(cfg)
    hooks = [(f'default_hooks.{name}', hook) for name, hook in (cfg.get('default_hooks') or {}).items()]
    if not isinstance(cfg.get('custom_hooks'), (list, tuple, type(None))):
        raise InputError(f'custom_hooks must be a list of dicts, not {repr(cfg.custom_hooks)[:100]}')
    hooks += listed(cfg.get('custom_hooks'), 'custom_hooks')
    for place, hook in hooks:
        cls = _check_type(hook, registries.HOOKS, place, extra=('priority',))
        _check_whole_arguments(hook, cls, place)
        if inspect.isclass(cls) and issubclass(cls, EMAHook):
            _check_whole_arguments(hook, ExponentialMovingAverage, place)
        if inspect.isclass(cls) and issubclass(cls, CheckpointHook):
            if hook.get('interval') != -1:  # none but the last
                _check_whole(hook, place, 'interval')
            _check_whole(hook, place, 'max_keep_ckpts', least=-1)
    _check_optimizer(cfg.get('optim_wrapper'))
    _check_layer_decay(cfg)
    _check_ignored_label(cfg)
    schedulers = cfg.get('param_scheduler')
    if isinstance(schedulers, dict) and 'type' not in schedulers:
        schedulers = list(schedulers.values())  # of several optimizers
    schedulers = list(listed(schedulers, 'param_scheduler'))
    for place, scheduler in schedulers:
        cls = _check_type(scheduler, registries.PARAM_SCHEDULERS, place, extra=('convert_to_iter_based',))
        if scheduler.get('convert_to_iter_based') and not hasattr(cls, 'build_iter_from_epoch'):
            raise InputError(f'{place} ({scheduler["type"]}) cannot change each step: leave out convert_to_iter_based')
    for split in SPLITS[1:]:
        names, evaluator = [], cfg.get(f'{split}_evaluator')
        if 'metrics' in (evaluator or ()):
            cls = _check_type(evaluator, registries.EVALUATOR, f'{split}_evaluator', default='Evaluator')
            names = [] if cls is Evaluator else [None]
        for place, metric in metric_configs(cfg, split):
            cls = _check_type(metric, registries.METRICS, place)
            if cls is not None and cls.__name__ == 'Accuracy':
                _check_topk(metric, cfg, place)
            roi_head = cfg.model.get('roi_head')
            if 'segm' in (metric.get('metric') or ()) and isinstance(roi_head, dict) and not roi_head.get('mask_head'):
                raise InputError(f"{place} evaluates masks, but model.roi_head has no mask_head: set metric='bbox'")
            names.append(metric_names(metric, place))
        if split == 'val':
            check_monitors(cfg, hooks, schedulers, None if None in names else set().union(*names))
    for place, hook in hooks:
        cls = find_type(hook, registries.HOOKS) if isinstance(hook, dict) else None
        if inspect.isclass(cls) and issubclass(
            cls, (CheckpointHook, EarlyStoppingHook)
        ):  # They compare names and rules of metrics.
            _construct(cls, place, **{key: value for key, value in hook.items() if key not in (*NODE_KEYS, 'priority')})
    visualizer = cfg.get('visualizer')
    _check_type(visualizer, registries.VISUALIZERS, 'visualizer', default='Visualizer')
    if isinstance(visualizer, dict):
        for place, backend in listed(visualizer.get('vis_backends'), 'visualizer.vis_backends'):
            _check_type(backend, registries.VISBACKENDS, place)
    cls = _check_type(cfg.get('log_processor'), registries.LOG_PROCESSORS, 'log_processor', default='LogProcessor')
    _check_whole_arguments(cfg.get('log_processor'), cls, 'log_processor')
    if (cfg.get('auto_scale_lr') or {}).get('base_batch_size') is not None:
        _check_whole(cfg.auto_scale_lr, 'auto_scale_lr', 'base_batch_size')


def _check_topk(metric: dict, cfg: Config, place: str) -> None:
    """Refuse a top-k accuracy of more classes than there are, which MMPretrain finds at the first evaluation."""
    head, topk = cfg.model.get('head'), metric.get('topk')
    classes = head.get('num_classes') if isinstance(head, dict) else None
    most = max((k for k in (topk if isinstance(topk, (list, tuple)) else [topk]) if isinstance(k, int)), default=0)
    if isinstance(classes, int) and most > classes:
        raise InputError(f'{place} asks for the top {most} of {classes} classes: set topk to numbers up to {classes}')


def _check_environment(cfg: Config) -> None:
    """Check what MMEngine sets up before it builds anything: seeds, the log, and how processes start."""
    for key in ('randomness', 'env_cfg'):
        if key in cfg and not isinstance(cfg[key], dict):
            raise InputError(f'{key} must be a dict, not {cfg[key]!r}')
    randomness, env = cfg.get('randomness', {}), cfg.get('env_cfg', {})
    _check_arguments(randomness, {*inspect.signature(Runner.set_randomness).parameters}, False, 'randomness')
    _check_seed(randomness, 'randomness')
    for key in ('diff_rank_seed', 'deterministic'):
        _check_flag(randomness, 'randomness', key)
    level = cfg.get('log_level', 'INFO')
    # getLevelName returns the number of a name; of anything else, a text.
    if not (_is_whole(level) or isinstance(level, str) and isinstance(logging.getLevelName(level), int)):
        raise InputError(f'log_level must be DEBUG, INFO, WARNING, ERROR, CRITICAL or a whole number, not {level!r}')
    _check_arguments(env, ENV_KEYS, True, 'env_cfg')
    _check_flag(env, 'env_cfg', 'cudnn_benchmark')
    workers, processes = env.get('mp_cfg', {}), env.get('dist_cfg', {})
    for key, node in (('mp_cfg', workers), ('dist_cfg', processes)):
        if not isinstance(node, dict):
            raise InputError(f'env_cfg.{key} must be a dict, not {node!r}')
    _check_arguments(workers, {'mp_start_method', 'opencv_num_threads'}, False, 'env_cfg.mp_cfg')
    method, place = workers.get('mp_start_method', 'fork'), 'env_cfg.mp_cfg.mp_start_method'
    _in_a_sentence(check_choice, place, method, get_all_start_methods())
    for where, node, key in (('env_cfg.mp_cfg', workers, 'opencv_num_threads'), ('env_cfg', env, 'resource_limit')):
        if not _is_whole(node.get(key, 0)):
            raise InputError(f'{where}.{key} must be a whole number, not {node[key]!r}')
    if not isinstance(processes.get('backend', ''), str):
        raise InputError(f'env_cfg.dist_cfg.backend must be text, such as "nccl", not {processes.backend!r}')
    if processes.get('timeout') is not None:
        _in_a_sentence(check_finite, 'env_cfg.dist_cfg.timeout', processes['timeout'], 0)


def _check_seed(node: dict, place: str) -> None:
    """Check a seed; a data sampler adds the number of the epoch to its own."""
    if node.get('seed') is not None:
        _in_a_sentence(check_whole, f'{place}.seed', node['seed'], 0, MAX_SEED)


def _check_flag(node: dict, place: str, key: str) -> None:
    """Refuse text for a switch, as "False" counts as true."""
    if key in node:
        _in_a_sentence(lambda: check_flags(**{f'{place}.{key}': node[key]}))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_whole_arguments(node: object, cls: Callable | None, place: str) -> None:
    """Refuse text and fractions for the arguments of a class that are whole numbers by annotation or default."""
    if not isinstance(node, dict) or not inspect.isclass(cls):
        return
    for base in cls.__mro__:
        for name, argument in inspect.signature(base.__init__).parameters.items() if '__init__' in vars(base) else ():
            whole = argument.annotation in (int, 'int') or _is_whole(argument.default)
            if whole and name in node and node[name] is not None and not _is_whole(node[name]):
                raise InputError(f'{place}.{name} must be a whole number, not {node[name]!r}')


def _check_loops(cfg: Config) -> None:
    train = cfg.get('train_cfg')
    if train is not None:
        by_epoch = train.get('by_epoch')
        if 'type' not in train and by_epoch is None:
            raise InputError('train_cfg needs a type, EpochBasedTrainLoop or IterBasedTrainLoop for instance')
        default = 'EpochBasedTrainLoop' if by_epoch else 'IterBasedTrainLoop'
        _check_type(train, registries.LOOPS, 'train_cfg', default=default, extra=('by_epoch',))
        for key in ('max_epochs', 'max_iters', 'val_interval'):
            _check_whole(train, 'train_cfg', key)
        _check_whole(train, 'train_cfg', 'val_begin', least=0)
    _check_type(cfg.get('val_cfg'), registries.LOOPS, 'val_cfg', default='ValLoop')
    _check_type(cfg.get('test_cfg'), registries.LOOPS, 'test_cfg', default='TestLoop')


def _check_whole(node: dict, place: str, key: str, least: int = 1) -> None:
    value = node.get(key, least)
    if value != inf and not (isinstance(value, float) and value.is_integer() and value >= least):  # as MMEngine
        _in_a_sentence(check_whole, f'{place}.{key}', value, least)


def _in_a_sentence(check: Callable, *arguments: object) -> None:
    """Raise what a check of arguments says as an InputError."""
    try:
        check(*arguments)
    except ValueError as error:
        raise InputError(str(error)) from None


def _check_optimizer(wrapper: dict | None) -> None:
    """Check optim_wrapper and its optimizer; torch's own optimizers are built once, over one parameter."""
    if wrapper is None or wrapper.get('optimizer') is None:
        return  # several optimizers are for their constructor to read
    place, optimizer = 'optim_wrapper.optimizer', wrapper['optimizer']
    constructor = wrapper.get('constructor')
    keys = wrapper.get('paramwise_cfg') or {}
    _check_dict(keys, 'optim_wrapper.paramwise_cfg')
    _check_dict(keys.get('custom_keys'), 'optim_wrapper.paramwise_cfg.custom_keys')
    _check_clipping(wrapper.get('clip_grad'), 'optim_wrapper.clip_grad')
    _check_whole(wrapper, 'optim_wrapper', 'accumulative_counts')
    for key in (key for key in keys if str(key).endswith('_mult') and keys[key] is not None):
        _in_a_sentence(check_finite, f'optim_wrapper.paramwise_cfg.{key}', keys[key])
    if constructor is not None:
        _check_type(dict(type=constructor), registries.OPTIM_WRAPPER_CONSTRUCTORS, 'optim_wrapper.constructor')
    else:
        if 'layer_decay_rate' in keys:
            raise InputError(
                'nothing reads optim_wrapper.paramwise_cfg.layer_decay_rate: add '
                "optim_wrapper.constructor='mmattn.LayerDecayOptimWrapperConstructor'"
            )
        _check_arguments(keys, PARAMWISE_KEYS, True, 'optim_wrapper.paramwise_cfg')
    _check_type(wrapper, registries.OPTIM_WRAPPERS, 'optim_wrapper', 'OptimWrapper', ('constructor', 'paramwise_cfg'))
    cls = _check_type(optimizer, registries.OPTIMIZERS, place)
    if inspect.isclass(cls) and cls.__module__.startswith('torch.optim'):
        # fused ones are for accelerators
        arguments = {key: value for key, value in optimizer.items() if key not in (*NODE_KEYS, 'fused')}
        for key, parameter in inspect.signature(cls).parameters.items():
            if isinstance(parameter.default, float) and isinstance(arguments.get(key), str):
                raise InputError(f'{place}.{key} must be a number, not {arguments[key]!r}')
        _construct(cls, place, params=[torch.nn.Parameter(torch.zeros(1))], **arguments)


def _check_clipping(node: dict | None, place: str) -> None:
    """Check the clipping of gradients; torch's function is called once, over one gradient."""
    _check_dict(node, place)
    if node is None:
        return
    kind, arguments = node.get('type', 'norm'), {key: value for key, value in node.items() if key != 'type'}
    if kind not in list(CLIPPING):
        raise InputError(f'{place}.type must be one of {", ".join(CLIPPING)}, not {kind!r}')
    clip, limit = CLIPPING[kind]
    _check_arguments(arguments, {*inspect.signature(clip).parameters} - {'parameters'}, False, place)
    if arguments.get(limit) != inf:  # which measures the norm only
        _in_a_sentence(check_finite, f'{place}.{limit}', arguments.get(limit), 0)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    _construct(clip, place, parameters=[parameter], **arguments)


def _check_ignored_label(cfg: Config) -> None:
    """Refuse a segmentor whose heads and metrics differ in the label that they ignore: its pixels lower the score."""
    if cfg.get('default_scope') != 'mmseg':
        return
    heads = [one for key in ('decode_head', 'auxiliary_head') for one in listed(cfg.model.get(key), f'model.{key}')]
    parts = [(f'{place}.ignore_index', head.get('ignore_index', 255)) for place, head in heads]
    for split in SPLITS[1:]:
        for place, metric in metric_configs(cfg, split):
            if 'IoUMetric' in bases(metric, registries.METRICS):
                parts.append((f'{place}.ignore_index', metric.get('ignore_index', 255)))
    for (first, label), (second, other) in pairwise(parts):
        if other != label and None not in (other, label):
            raise InputError(f'{first} is {label}, but {second} is {other}: set both to the label that is ignored')


def _check_layer_decay(cfg: Config) -> None:
    """Refuse constructors of layer-wise decay that do not support our backbones: their errors have no text."""
    constructor, backbone = (cfg.get('optim_wrapper') or {}).get('constructor'), cfg.model.get('backbone')
    if not isinstance(backbone, dict) or not loads_strictly(find_type(backbone)) or 'Decay' not in str(constructor):
        return
    cls = find_type(dict(type=constructor), registries.OPTIM_WRAPPER_CONSTRUCTORS)
    package = getattr(cls, '__module__', '').partition('.')[0]
    asks_model = package == 'mmpretrain' and hasattr(find_type(cfg.model), 'get_layer_depth')
    if package in ('mmdet', 'mmseg', 'mmpretrain') and not asks_model:
        raise InputError(
            f'optim_wrapper.constructor {constructor} does not support {backbone["type"]}: use '
            "constructor='mmattn.LayerDecayOptimWrapperConstructor', paramwise_cfg=dict(layer_decay_rate=...)"
        )


def _construct(cls: Callable, place: str, **arguments: object) -> None:
    """Build a class, and raise what it says about its arguments as an InputError."""
    try:
        cls(**arguments)
    except (ValueError, TypeError, AssertionError, KeyError, re.error) as error:
        raise InputError(
            f'{place}: {str(error) or f"one of these values is not of the kind or range that is needed: {arguments}"}'
        ) from error


def _check_type(
    node: object,
    registry: Registry,
    place: str,
    default: str | None = None,
    extra: Iterable[str] = (),
    inner: bool = False,
) -> Callable | None:
    """Check the type of a dict and its arguments, and return what the type names. Other nodes are not checked.

    The type may be missing if there is a default. The dict may have extra keys; if it is inner to a module, that may
    take out keys before it is built, so only those that look misspelt are refused.
    """
    _check_dict(node, place)
    if not isinstance(node, dict):
        return None
    if node.get('type', default) is None:
        raise InputError(NO_TYPE.format(place))
    cls = find_type(node, registry, default)
    if cls is None:
        raise InputError(f'{place} has an unknown type {_unknown(node, registry)}')
    known, more = _arguments(cls)
    _check_arguments(node, {*known, *extra, *NODE_KEYS}, more or inner, f'{place} ({node.get("type", default)})')
    return cls


def _check_arguments(node: dict, known: set[str], more: bool, place: str) -> None:
    """Refuse keys that are not known: all of them, or if there may be ``more``, those that look misspelt."""
    for key in node:
        if key not in known and (not more or difflib.get_close_matches(key, known, n=1, cutoff=SIMILAR)):
            raise InputError(f'{place} has no argument {key}{near_misses(key, known)}')


def _arguments(cls: Callable) -> tuple[set[str], bool]:
    """The names of the arguments of a class or function, base classes included, and whether there may be more."""
    if isinstance(cls, partial):
        cls = cls.keywords.get('transform', cls)  # a transform of torchvision, as MMPretrain registers it
    is_class = inspect.isclass(cls)
    names, passes_on = set(), []
    for function in [base.__init__ for base in cls.__mro__ if '__init__' in vars(base)] if is_class else [cls]:
        parameters = inspect.signature(function).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        passes_on.append(any(p.kind is p.VAR_KEYWORD for p in parameters))
        if not passes_on[-1]:
            break
    if is_class and issubclass(cls, CheckpointHook):
        # It passes what it does not know to this method, after the first epoch.
        return names | set(inspect.signature(Runner.save_checkpoint).parameters), False
    if is_class and issubclass(cls, EMAHook):
        names |= _arguments(ExponentialMovingAverage)[0]  # or of another averaged model
    return names, passes_on[0]


def _unknown(node: dict, registry: Registry) -> str:
    """The type of a dict that the registry does not know, with its name in another package, those like it, or the
    package that is missing."""
    name = str(node['type'])
    scope, _, short = name.rpartition('.')
    package = scope.partition('.')[0]
    if scope and not package:  # MMEngine would take it for a relative import
        return name
    if package and find_spec(package) is None:
        return f'{name}: the package {package} is not installed'
    for each in PACKAGES if not scope else ():
        found = None
        with suppress(Exception):  # a package whose import fails
            found = find_type(dict(type=f'{each}.{short}'), registry) if find_spec(each) else None
        if found and found.__module__.partition('.')[0] == each:
            return f'{name}: did you mean {each}.{short}?'
    known = set()
    with registry.switch_scope_and_registry(scope or node.get('_scope_')) as registry:
        while registry is not None:
            known |= set(registry.module_dict)
            registry = registry.parent
    return f'{name}{near_misses(short, known)}'
