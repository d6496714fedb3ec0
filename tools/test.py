"""Test a detector, a segmentor or a classifier.

python tools/test.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py work_dirs/.../epoch_12.pth
"""

import argparse
import os
import sys
from pathlib import Path

from mmguard.confusion import draw_confusion
from mmguard.prediction.hook import DrawingHook
from mmguard.runs.configs import add_arguments, enable_tta, load_config, write_predictions
from mmguard.runs.running import run_tool, test
from mmguard.weights import check_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument('checkpoint', help='weights of the whole model: a file, an address or a name')
    parser.add_argument(
        '--tta', action='store_true', help='test several views of each image (scales, flips, crops) and merge them'
    )
    parser.add_argument('--show-dir', type=Path, help='folder for images of predictions beside ground truth')
    parser.add_argument(
        '--draw', type=int, default=50, metavar='NUMBER', help='number of images in --show-dir (default: 50)'
    )
    parser.add_argument('--out', type=Path, help='.pkl file for the predictions')
    parser.add_argument('--confusion', type=Path, help='.png, .pdf or .svg file for a picture of the confusion matrix')
    args = parser.parse_args()
    if args.out and args.out.suffix not in ('.pkl', '.pickle'):
        sys.exit(f'--out must name a .pkl file, not {args.out}.')
    if args.confusion and args.confusion.suffix not in ('.png', '.pdf', '.svg'):
        sys.exit(f'--confusion must name a .png, .pdf or .svg file, not {args.confusion}.')
    if args.draw < 1:
        sys.exit(f'--draw must be 1 or more, not {args.draw}.')
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))  # MMEngine reads it

    cfg = load_config(args.config, args.cfg_options, row=args.row, work_dir=args.work_dir, launcher=args.launcher)
    check_source(args.checkpoint, scratch='')
    if args.tta:
        enable_tta(cfg)
    if args.out:
        write_predictions(cfg, args.out)
    if args.confusion:
        draw_confusion(cfg, args.confusion)
    hooks = [DrawingHook(args.show_dir, args.draw)] if args.show_dir else []
    test(cfg, args.checkpoint, trusted=args.trust_checkpoint, hooks=hooks)


if __name__ == '__main__':
    run_tool(main)
