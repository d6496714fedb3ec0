"""Make token labels, the classes that a classifier sees in each part of an image, to train VOLO with.

    python tools/make_token_labels.py configs/elsa_swin/elsa-swin-t_in1k.py checkpoints/elsa_swin_tiny.pth \\
        --images data/imagenet/train --out data/token_labels

For each image FOLDER/NAME.JPEG, --out gets FOLDER/NAME.pt with the published format, see
mmattn/classification/token_labels.py. An image is resized to a square, without regard to its aspect ratio. The head of
the classifier is applied at each place of its last map; of VOLO it is the token head. Label maps that are there already
are kept, so an interrupted run can be started again.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import mmcv
import torch
from mmengine.config import DictAction
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmattn.checks.images import load_image
from mmattn.errors import InputError
from mmattn.prediction.predict import IMAGES, build
from mmattn.runs.configs import load_config
from mmattn.runs.outputs import check_output
from mmattn.runs.running import run_tool, running

#: classes of a place in the published label maps
TOP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config of a classifier')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--images', type=Path, required=True, help='folder with folders of images')
    parser.add_argument('--out', type=Path, required=True, help='folder for the label maps')
    parser.add_argument(
        '--places', type=int, default=18, help='height and width of the maps (default: 18, as published)'
    )
    parser.add_argument('--batch-size', type=int, default=16, help='images at once (default: 16)')
    parser.add_argument('--workers', type=int, default=2, help='processes that read images (default: 2)')
    parser.add_argument('--device', help='cpu, cuda, cuda:1 ... (default: an accelerator, if there is one)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='settings to override, key.key=value ...')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the checkpoint, if any')
    args = parser.parse_args()
    for name, least in (('places', 1), ('batch_size', 1), ('workers', 0)):
        if getattr(args, name) < least:
            sys.exit(f'--{name.replace("_", "-")} must be {least} or more, not {getattr(args, name)}.')
    if not args.images.is_dir():
        sys.exit(f'There is no folder {args.images}.')

    cfg = load_config(args.config, args.cfg_options)
    if cfg.get('default_scope') != 'mmpretrain':
        sys.exit(f'{args.config} is not a config of a classifier.')
    from mmattn.classification.token_labels import label_file  # imported here, since it needs mmpretrain

    images = sorted(path for path in args.images.rglob('*') if path.suffix.lower() in IMAGES)
    if not images:
        sys.exit(f'{args.images} has no image, which ends with {", ".join(IMAGES)}.')
    files = {label_file(args.out, path): path for path in images}
    if len(files) < len(images):
        sys.exit(f'{args.images} has images with the same folder and name, whose label maps would be the same file.')
    wanted = {file: path for file, path in files.items() if not file.exists()}

    check_output(*files)
    with running(cfg, args.trust_checkpoint):
        load, predictor = build(cfg, args.checkpoint, args.device, args.trust_checkpoint)
    model = predictor.inferencer.model
    read = partial(read_images, load, args.places * stride(model))
    batches = DataLoader(list(wanted.items()), args.batch_size, num_workers=args.workers, collate_fn=read)
    for batch_files, pixels in track(batches, 'Labelling'):
        for file, label_map in zip(batch_files, label_maps(model, pixels)):
            write(label_map, file)
    print(f'{args.out}: {len(wanted)} label maps made, {len(files) - len(wanted)} kept')


def read_images(load: object, side: int, items: list[tuple[Path, Path]]) -> tuple[list[Path], list[Tensor]]:
    """The files to write, and their images, uint8 (3, side, side)."""
    images = [load_image(load, dict(img_path=str(path)))['img'] for _, path in items]
    images = [mmcv.imresize(image, (side, side), interpolation='bicubic', backend='pillow') for image in images]
    return [file for file, _ in items], [torch.from_numpy(image).permute(2, 0, 1) for image in images]


@torch.no_grad()
def stride(model: nn.Module, side: int = 256) -> int:
    """The stride of a classifier's last map."""
    x = torch.zeros(1, 3, side, side, device=next(model.parameters()).device)
    last = model.extract_feat(x, stage='backbone')[-1]
    if last.dim() != 4:
        raise InputError(f'label maps need a backbone that returns feature maps, not a tensor {tuple(last.shape)}')
    return side // last.shape[2]


@torch.no_grad()
def label_maps(model: nn.Module, images: list[Tensor]) -> Tensor:
    """Images, uint8 (3, H, W) each, BGR -> their label maps (B, 2, TOP, h, w), on the CPU."""
    x = model.data_preprocessor(dict(inputs=images))['inputs']
    feats = model.extract_feat(x, stage='backbone')
    if hasattr(model.head, 'dense_logits'):
        logits = model.head.dense_logits(feats)[1]
    else:  # A place is a map of one pixel: neck and head then classify it alone.
        B, C, h, w = feats[-1].shape
        places = (feats[-1].permute(0, 2, 3, 1).reshape(-1, C, 1, 1),)
        logits = model.head(model.neck(places) if model.with_neck else places).view(B, h, w, -1).permute(0, 3, 1, 2)
    classes = logits.shape[1]
    logits, numbers = logits.float().topk(min(TOP, classes), 1)
    maps = torch.stack((logits, numbers.float()), 1).cpu()
    return maps.half() if classes <= 2048 else maps  # float16 has no larger odd numbers


def write(label_map: Tensor, file: Path) -> None:
    """Write a label map under a temporary name first, so that no file is ever a part of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix('.unfinished')
    try:
        torch.save(label_map.clone(), unfinished)  # A view would be saved with its whole batch.
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == '__main__':
    run_tool(main)
