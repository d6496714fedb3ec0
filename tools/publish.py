"""Write a trained model as a folder to share: weights, config and model card.

    python tools/publish.py CONFIG CHECKPOINT FOLDER --figures top-1=41.2 --license apache-2.0 --data 'own photos'

model.safetensors has the weights in half precision, the settings of the backbones that tensors do not show, and the
names of the classes. config.py is the config in one file. README.md is the card, with the license, the figures and the
note on the data; of a whole model, it has the code that predicts with OpenMMLab's inferencer. Any ``init_cfg`` takes
the weights: ``init_cfg=dict(type='Pretrained', checkpoint='FOLDER/model.safetensors')``.
"""

import argparse
from functools import partial
from pathlib import Path

from mmattn.publishing import publish
from mmguard.errors import InputError
from mmguard.runs.configs import add_row, load_config
from mmguard.runs.rows import read_row
from mmguard.runs.running import run_tool
from mmguard.runs.trained import read_trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_row(parser)
    parser.add_argument('checkpoint', type=Path, help='of a training with this config')
    parser.add_argument('folder', type=Path, help='folder to write to; files in it are written anew')
    parser.add_argument('--figures', nargs='+', default=[], metavar='NAME=VALUE', help='for the card')
    parser.add_argument('--data', required=True, help='what it was trained on, and the terms of the data, for the card')
    parser.add_argument(
        '--license',
        help='of the weights, as apache-2.0 or cc-by-nc-4.0 (default: that of the weights of timm that the training '
        'started from, if any)',
    )
    args = parser.parse_args()
    figures = [figure.partition('=') for figure in args.figures]
    if not all(name and value for name, _, value in figures):
        raise InputError(f'--figures must be NAME=VALUE, not {" ".join(args.figures)}')
    load_config(args.config, row=args.row)  # checks it
    cfg = read_row(args.config, args.row)  # as it is, not as this machine runs it
    name, figures = args.folder.resolve().name, {name: value for name, _, value in figures}
    publish(cfg, name, partial(read_trained, cfg, args.checkpoint), args.folder, figures, args.data, args.license)
    print(f'{args.folder} is written')


if __name__ == '__main__':
    run_tool(main)
