"""Train a detector or a segmentor.

python tools/train.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py
"""

import argparse
import logging
import sys

from mmengine.device import get_device
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmattn.engine.checkpoints import settle_resume
from mmattn.engine.configs import add_arguments, load_config
from mmattn.engine.datasets import InputCheckHook
from mmattn.errors import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='go on from a checkpoint, without a value from the latest in the work folder',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the rate with the batch size')
    args = parser.parse_args()

    cfg = load_config(args)
    if args.amp:
        if get_device() == 'cpu':
            sys.exit('--amp needs an accelerator, and there is none here: leave it out.')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.loss_scale = 'dynamic'
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            sys.exit(f'--auto-scale-lr needs auto_scale_lr.base_batch_size, which {args.config} does not have.')
        cfg.auto_scale_lr.enable = True
    if cfg.get('strategy', {}).get('type') == 'FSDPStrategy' and args.launcher == 'none':
        sys.exit(f'{args.config} shards the model over processes: start it with tools/dist_train.sh.')
    resume = args.resume or cfg.get('resume') and (cfg.get('load_from') or 'auto')
    if resume and cfg.get('strategy', {}).get('type') == 'FSDPStrategy':
        sys.exit('Sharded training cannot be resumed: train without configs/_base_/fsdp.py to go on.')
    if resume:
        settle_resume(cfg, None if resume == 'auto' else resume, args.trust_checkpoint)
    # MMEngine's other runners, for its strategies, are asked for by runner_type
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    runner.register_hook(InputCheckHook(), 'HIGHEST')
    runner.train()


if __name__ == '__main__':
    logging.raiseExceptions = False  # a full disk is told of once, not by every line of the log
    run_tool(main)
