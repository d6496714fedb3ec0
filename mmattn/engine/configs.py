"""From a command line to a config that this machine can run; what tools/train.py and tools/test.py share."""

import argparse
import difflib
import os
import sys
from pathlib import Path
from types import NoneType

import torch
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import OPTIMIZERS

from ..errors import InputError, describe, known_types, near_misses
from ..packages import require, require_ops
from ..weights import read_file
from .datasets import check_coco_files
from .sharding import cpu_shards

#: default_scope -> what its models need
SCOPES = {'mmdet': ('mmcv', 'mmdet'), 'mmseg': ('mmcv', 'mmseg')}
#: what MMEngine's Runner takes from a config
KEYS = (
    'model',
    'train_dataloader',
    'val_dataloader',
    'test_dataloader',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'optim_wrapper',
    'param_scheduler',
    'auto_scale_lr',
    'val_evaluator',
    'test_evaluator',
    'default_hooks',
    'custom_hooks',
    'data_preprocessor',
    'load_from',
    'resume',
    'work_dir',
    'env_cfg',
    'log_processor',
    'log_level',
    'visualizer',
    'default_scope',
    'randomness',
    'experiment_name',
    'model_wrapper_cfg',
    'custom_imports',
    'compile',
    'activation_checkpointing',
    'strategy',
    'runner_type',
)
#: those of them that are dicts or None
DICTS = KEYS[:8]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that training and testing have in common, named as OpenMMLab names them."""
    parser.add_argument('config', help='config of MMDetection or MMSegmentation')
    parser.add_argument('--work-dir', help='folder for logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='settings to override, key.key=value ...')
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='run the code in the checkpoint that is loaded or resumed, if there is any',
    )
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')
    # torch.distributed.launch passes it
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def load_config(args: argparse.Namespace) -> Config:
    """The config that the arguments of :func:`add_arguments` ask for, made to fit this machine.

    From then on, MMEngine reads checkpoints without running code in them, and MMDetection checks COCO's files.

    Raises:
        FileNotFoundError: if there is no such config.
        ImportError: if a package it needs is missing or too old.
        InputError: if it cannot be read, has no model, or has a key that looks like a misspelt one.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not Path(args.config).is_file():
        raise FileNotFoundError(f'there is no config {args.config}')
    try:
        cfg = Config.fromfile(args.config)
        keys = {*KEYS, *cfg}
        cfg.merge_from_dict(args.cfg_options or {})
    except ImportError:
        raise
    except Exception as error:  # a config is a program
        raise InputError(f'{args.config} cannot be read: {describe(error)}') from error
    for key in set(cfg) - keys:
        raise InputError(f'--cfg-options sets {key}, which nothing reads{near_misses(key, keys)}')
    _check_keys(cfg, args.config)
    for package in SCOPES.get(cfg.get('default_scope'), ()):
        require(package, f'{args.config} ({cfg.default_scope})')
    if cfg.get('default_scope') == 'mmdet':
        require_ops(args.config)
        check_coco_files()
    _read_checkpoints(args.trust_checkpoint)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or str(Path('work_dirs') / Path(args.config).stem)
    if get_device() == 'cpu':
        _fit_cpu(cfg)
    return cfg


def _check_keys(cfg: Config, path: str) -> None:
    """Refuse what MMEngine would pass over, or take without a clear word."""
    for key in set(cfg) - set(KEYS):
        near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.88)
        if near and not key.startswith(near[0]):  # model_small and the like are variables
            raise InputError(f'{path} has a key {key}, which nothing reads: did you mean {near[0]}?')
    for key in DICTS:
        if not isinstance(cfg.get(key), (dict, NoneType)):
            raise InputError(f'{path}: {key} must be a dict, not {cfg[key]!r}')
    if cfg.get('model') is None:
        raise InputError(f'{path} has no model: it is no config of a detector or a segmentor')
    name = (cfg.get('optim_wrapper') or {}).get('optimizer', {}).get('type')
    with OPTIMIZERS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
        if isinstance(name, str) and registry.get(name) is None:
            raise InputError(f'{path}: there is no optimizer {name}{near_misses(name, known_types(registry))}')


def _read_checkpoints(trusted: bool) -> None:
    """Have MMEngine read checkpoints as :func:`mmattn.weights.read_file` does; by itself it runs the code in them."""
    from mmengine.runner import CheckpointLoader

    def load_from_mmattn(path: str, map_location: str) -> object:
        return read_file(path, map_location, trusted)

    for prefix in ('', 'http://', 'https://', 'torchvision://'):
        CheckpointLoader.register_scheme(prefix, load_from_mmattn, force=True)


def _fit_cpu(cfg: Config) -> None:
    """Replace, aloud, what runs on an accelerator only."""
    changes = []
    if cfg.get('optim_wrapper', {}).get('type') == 'AmpOptimWrapper':
        cfg.optim_wrapper.type = 'OptimWrapper'
        for key in ('loss_scale', 'dtype', 'use_fsdp'):
            cfg.optim_wrapper.pop(key, None)
        changes.append('mixed precision is off')
    if _replace(cfg.model, 'SyncBN', 'BN'):
        changes.append('SyncBN became BN')
    if cfg.launcher in ('slurm', 'mpi'):
        sys.exit(
            f'--launcher {cfg.launcher} needs accelerators, and there is none here: several processes on the CPU '
            'are started by tools/dist_train.sh and dist_test.sh.'
        )
    if cfg.launcher == 'pytorch':
        # MMEngine reaches for a GPU when it begins the group or wraps the model by itself.
        torch.distributed.init_process_group('gloo')
        cfg.model_wrapper_cfg = cfg.get('model_wrapper_cfg') or dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False
        )
        if cfg.get('strategy', {}).get('type') == 'FSDPStrategy':
            if not cpu_shards():
                sys.exit(f'The FSDP of torch {torch.__version__} needs accelerators, and there is none here.')
            cfg.strategy.model_wrapper.device_id = 'cpu'
            # PyTorch frees the memory of what is moved to the CPU, and dies, where it is there already.
            cfg.strategy.state_dict_cfg = dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
            )
        changes.append('processes talk through gloo')
    if changes:
        print_log(f'No accelerator here: {", ".join(changes)}.', logger='current')


def _replace(node: object, old: str, new: str) -> int:
    """Rename a type everywhere below a config node; how often."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    count = sum(_replace(child, old, new) for child in children)
    if isinstance(node, dict) and node.get('type') == old:
        node['type'] = new
        count += 1
    return count


def enable_tta(cfg: Config) -> None:
    """Turn a config's test into its multi-scale test.

    Raises:
        InputError: if the config has none, or asks for masks, which MMDetection cannot merge.
    """
    for key in ('tta_model', 'tta_pipeline'):
        if key not in cfg:
            raise InputError(f'multi-scale testing needs {key} in the config, see configs/_base_/datasets')
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]
    if any('segm' in evaluator.get('metric', ()) for evaluator in evaluators):
        raise InputError(
            'multi-scale testing cannot merge masks, MMDetection merges boxes only: '
            'test boxes alone with --cfg-options test_evaluator.metric=bbox'
        )
    roi_head = cfg.model.get('roi_head', {})
    if 'mask_head' in roi_head:
        roi_head.mask_head = roi_head.mask_roi_extractor = None
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
