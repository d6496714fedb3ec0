"""From a command line to a config that this machine can run; what tools/train.py and tools/test.py share."""
import argparse
import os
import sys
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.logging import print_log

from .stack import require, require_ops

#: default_scope -> what its models need
SCOPES = {'mmdet': ('mmcv', 'mmdet'), 'mmseg': ('mmcv', 'mmseg')}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that training and testing have in common, named as OpenMMLab names them."""
    parser.add_argument('config', help='config of MMDetection or MMSegmentation')
    parser.add_argument('--work-dir', help='folder for logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='settings to override, key.key=value ...')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')
    # torch.distributed.launch passes it
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def load_config(args: argparse.Namespace) -> Config:
    """The config that the arguments of :func:`add_arguments` ask for, made to fit this machine.

    Raises:
        FileNotFoundError: if there is no such config.
        ImportError: if a package it needs is missing or too old.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not Path(args.config).is_file():
        raise FileNotFoundError(f'there is no config {args.config}')
    cfg = Config.fromfile(args.config)
    if args.cfg_options:
        cfg.merge_from_dict(args.cfg_options)
    for package in SCOPES.get(cfg.get('default_scope'), ()):
        require(package, f'{args.config} ({cfg.default_scope})')
    if cfg.get('default_scope') == 'mmdet':
        require_ops(args.config)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or str(Path('work_dirs') / Path(args.config).stem)
    if get_device() == 'cpu':
        _fit_cpu(cfg)
    return cfg


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
        sys.exit(f'--launcher {cfg.launcher} needs accelerators, and there is none here: several processes on the CPU '
                 'are started by tools/dist_train.sh and dist_test.sh.')
    if cfg.launcher == 'pytorch':
        # MMEngine reaches for a GPU when it begins the group or wraps the model by itself.
        torch.distributed.init_process_group('gloo')
        cfg.model_wrapper_cfg = cfg.get('model_wrapper_cfg') or dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)
        if cfg.get('strategy', {}).get('type') == 'FSDPStrategy':
            cfg.strategy.model_wrapper.device_id = 'cpu'
            # PyTorch frees the memory of what is moved to the CPU, and dies, where it is there already.
            cfg.strategy.state_dict_cfg = dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True))
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
        ValueError: if the config has none, or asks for masks, which MMDetection cannot merge.
    """
    for key in ('tta_model', 'tta_pipeline'):
        if key not in cfg:
            raise ValueError(f'multi-scale testing needs {key} in the config, see configs/_base_/datasets')
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]
    if any('segm' in evaluator.get('metric', ()) for evaluator in evaluators):
        raise ValueError('multi-scale testing cannot merge masks, MMDetection merges boxes only: '
                         'test boxes alone with --cfg-options test_evaluator.metric=bbox')
    roi_head = cfg.model.get('roi_head', {})
    if 'mask_head' in roi_head:
        roi_head.mask_head = roi_head.mask_roi_extractor = None
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
