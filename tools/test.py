"""Test a detector or a segmentor.

python tools/test.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py work_dirs/.../epoch_12.pth
"""

import argparse
import sys
from pathlib import Path

from mmengine.runner import Runner

from mmattn.engine.configs import add_arguments, enable_tta, load_config
from mmattn.engine.datasets import InputCheckHook
from mmattn.errors import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument('checkpoint')
    parser.add_argument('--tta', action='store_true', help='several scales, and flipped; boxes or class maps')
    parser.add_argument('--show-dir', type=Path, help='folder for pictures, predictions beside ground truth')
    parser.add_argument('--out', type=Path, help='.pkl file for the predictions')
    args = parser.parse_args()
    if args.out and args.out.suffix not in ('.pkl', '.pickle'):
        sys.exit(f'--out must name a .pkl file, not {args.out}.')
    if not Path(args.checkpoint).is_file() and '://' not in args.checkpoint:
        sys.exit(f'There is no checkpoint {args.checkpoint}.')

    cfg = load_config(args)
    cfg.load_from = args.checkpoint
    if args.tta:
        enable_tta(cfg)
    if args.show_dir:
        hook = cfg.default_hooks.visualization
        hook.draw = True
        if cfg.default_scope == 'mmdet':
            hook.test_out_dir = str(args.show_dir.resolve())
        else:
            cfg.visualizer.save_dir = str(args.show_dir)
            hook.interval = 1  # OpenMMLab's own mmseg would show every 50th picture of a test
    runner = Runner.from_cfg(cfg)
    runner.register_hook(InputCheckHook(), 'HIGHEST')
    if args.out:
        runner.test_evaluator.metrics.append(_dump(cfg.default_scope, args.out))
    runner.test()


def _dump(scope: str, out: Path):
    if scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults as Dump  # packs masks
    else:
        from mmengine.evaluator import DumpResults as Dump
    return Dump(out_file_path=str(out))


if __name__ == '__main__':
    run_tool(main)
