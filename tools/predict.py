"""Predict on images and videos with a detector, a segmentor or a classifier.

    python tools/predict.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py CHECKPOINT photos --out found

--out gets drawn images (images/NAME.jpg) and predictions.json, of segmentors also label maps (labels/NAME.png); see
docs/predict.md. If a file cannot be read, the others are predicted, the last line names it, and the exit status is 1.
"""

import argparse
import sys
from pathlib import Path

from mmguard.prediction.predict import predict
from mmguard.runs.configs import add_config, load_config
from mmguard.runs.running import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument('checkpoint', help='weights of the whole model: a file, an address or a name')
    parser.add_argument('inputs', nargs='+', help='images, videos, folders with them, or patterns in quotes')
    parser.add_argument('--out', type=Path, required=True, help='folder for the results, new or empty')
    parser.add_argument(
        '--tile', type=int, help='cut images larger than this, in pixels, into square tiles of this side'
    )
    parser.add_argument('--overlap', type=int, help='pixels that tiles share (default: an eighth of --tile)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='draw detections from this score (default: 0.3)')
    parser.add_argument('--no-images', action='store_true', help='draw no images and videos')
    parser.add_argument('--batch-size', type=int, default=1, help='images or tiles at once (default: 1)')
    parser.add_argument('--device', help='cpu, cuda, cuda:1 ... (default: an accelerator, if there is one)')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the checkpoint, if any')
    args = parser.parse_args()
    if args.overlap is not None and args.tile is None:
        sys.exit('--overlap is for --tile: give both, or none.')
    if args.tile is not None and args.tile < 1:
        sys.exit(f'--tile must be 1 or more, not {args.tile}.')
    overlap = (args.tile or 0) // 8 if args.overlap is None else args.overlap
    if args.tile is not None and not 0 <= overlap < args.tile:
        sys.exit(f'--overlap must be smaller than --tile and not negative, not {overlap} for tiles of {args.tile}.')
    if args.batch_size < 1:
        sys.exit(f'--batch-size must be 1 or more, not {args.batch_size}.')
    if not 0 <= args.score_thr <= 1:
        sys.exit(f'--score-thr must be from 0 to 1, not {args.score_thr}.')

    cfg = load_config(args.config, args.cfg_options, row=args.row)
    try:
        predict(
            cfg,
            args.checkpoint,
            args.inputs,
            args.out,
            tile=args.tile,
            overlap=overlap,
            score_thr=args.score_thr,
            batch_size=args.batch_size,
            device=args.device,
            trusted=args.trust_checkpoint,
            draw=not args.no_images,
        )
    except KeyboardInterrupt:
        sys.exit(f'Interrupted: {args.out} has no predictions.json, and the files in it are whole.')


if __name__ == '__main__':
    run_tool(main)
