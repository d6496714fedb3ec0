"""Train a detector, a segmentor or a classifier.

python tools/train.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py
"""

import argparse
import os

from mmguard.runs.configs import add_arguments, enable_auto_scale_lr, load_config
from mmguard.runs.resuming import has_checkpoint
from mmguard.runs.running import interruption_of, run_tool, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        '--resume', nargs='?', const='auto', help='resume from a checkpoint (default: the newest in the work folder)'
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision; on a CPU: bfloat16')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size')
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))  # MMEngine reads it

    cfg = load_config(
        args.config, args.cfg_options, row=args.row, work_dir=args.work_dir, launcher=args.launcher, amp=args.amp
    )
    if args.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    try:
        train(cfg, args.resume, trusted=args.trust_checkpoint)
    except BaseException as error:
        if interruption_of(error):
            raise KeyboardInterrupt(
                f'the same command with --resume continues from the last checkpoint in {cfg.work_dir}'
                if has_checkpoint(cfg)
                else f'there is no checkpoint in {cfg.work_dir} yet'
            ) from error
        raise


if __name__ == '__main__':
    run_tool(main)
