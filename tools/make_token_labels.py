"""Make token labels, the classes that a classifier sees in each part of an image, to train VOLO with.

    python tools/make_token_labels.py configs/elsa_swin/elsa-swin-t_in1k.py checkpoints/elsa_swin_tiny.pth \\
        --images data/imagenet/train --out data/token_labels

For each image FOLDER/NAME.JPEG, --out gets FOLDER/NAME.pt with the published format, see
mmattn/classification/token_labels.py. An image is resized to a square, without regard to its aspect ratio. The head of
the classifier is applied at each place of its last map; of VOLO it is the token head.

An interrupted run can be started again: it keeps the label maps that are there and whole. token_labels.json in --out
notes what made them, so that those of two classifiers are not mixed. An image that cannot be used is left out and named
at the end. Then the exit status is 1.
"""

import argparse
import hashlib
import json
import sys
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import mmcv
import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmattn.errors import InputError, describe, refusing
from mmattn.outputs import check_output, save_tensors, whole_file
from mmguard.checks.images import image_files, load_image
from mmguard.checks.pixels import Pixels, pixels_of
from mmguard.prediction.predict import IMAGES, build
from mmguard.runs.configs import add_config, load_config, package_of
from mmguard.runs.running import run_tool, running

#: classes of a place in the published label maps
TOP = 5
#: file beside the label maps that notes what made them
NOTE = 'token_labels.json'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--images', type=Path, required=True, help='folder with folders of images')
    parser.add_argument('--out', type=Path, required=True, help='folder for the label maps')
    parser.add_argument(
        '--places', type=int, default=18, help='height and width of the maps (default: 18, as published)'
    )
    parser.add_argument('--batch-size', type=int, default=16, help='images at once (default: 16)')
    parser.add_argument('--workers', type=int, default=2, help='processes that read images (default: 2)')
    parser.add_argument('--device', help='cpu, cuda, cuda:1 ... (default: an accelerator, if there is one)')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the checkpoint, if any')
    args = parser.parse_args()
    for name, least in (('places', 1), ('batch_size', 1), ('workers', 0)):
        if getattr(args, name) < least:
            sys.exit(f'--{name.replace("_", "-")} must be {least} or more, not {getattr(args, name)}.')
    if not args.images.is_dir():
        sys.exit(f'There is no folder {args.images}.')

    cfg = load_config(args.config, args.cfg_options, row=args.row)
    if package_of(cfg) != 'mmpretrain':
        sys.exit(f'{args.config} is not a config of a classifier.')
    from mmattn.classification.token_labels import checked_label_map, label_file  # imported here: it needs mmpretrain

    images = sorted(args.images / name for name in image_files(str(args.images), on_error=end))
    if not images:
        sys.exit(f'{args.images} has no image, which ends with {", ".join(IMAGES)}.')
    files = {label_file(args.out, path): path for path in images}
    if len(files) < len(images):
        sys.exit(f'{args.images} has images with the same folder and name, whose label maps would be the same file.')
    check_output(*files, args.out / NOTE)
    if 'backbone' not in cfg.model:
        raise InputError(f'label maps need a classifier with the setting "backbone", not a {cfg.model.get("type")}')
    contents = cfg.to_dict()  # before the model is built, which changes them
    with running(cfg, args.trust_checkpoint):
        load, predictor = build(cfg, args.checkpoint, args.device, args.trust_checkpoint)
    model = predictor.inferencer.model
    norm = pixels_of(cfg, None)  # of the pipeline; the data preprocessor is a part of the model
    norm = norm if norm.switches else None
    classifier = contents['model'], contents.get('data_preprocessor'), load, *([norm] if norm else [])
    check_note(
        args.out,
        dict(
            places=args.places,
            classifier=digest(repr(classifier)),
            checkpoint=digest(*chain.from_iterable(model.state_dict().items())),
        ),
    )
    channels = contents['model']['backbone'].get('in_channels', 3)
    read = partial(read_images, load, norm, args.places, stride(model, channels))
    batches = DataLoader(list(files.items()), args.batch_size, num_workers=args.workers, collate_fn=read)
    made, problems = 0, []
    for batch, pixels, broken in track(batches, 'Labelling'):
        problems += broken
        for file, label_map in zip(batch, label_maps(model, pixels) if batch else ()):
            if label_map.shape[2:] != (args.places, args.places):
                raise InputError(f'the classifier gives {tuple(label_map.shape[2:])} places: choose another --places')
            checked_label_map(label_map, f'what the classifier makes of {files[file]}')
            save_tensors(label_map.clone(), file)  # A view would be saved with its whole batch.
            made += 1
    print(f'{args.out}: {made} label maps made, {len(files) - made - len(problems)} kept')
    if problems:
        more = f' and {len(problems) - 6} more' if len(problems) > 6 else ''
        raise InputError(f'{len(problems)} of {len(files)} images could not be used: {"; ".join(problems[:6])}{more}')


def end(error: OSError) -> None:
    """End with an error of the system, such as a folder that cannot be read."""
    raise error


def check_note(out: Path, made_by: dict[str, object]) -> None:
    """Note what makes the label maps in a folder.

    Raises:
        InputError: if something else has made label maps there, or if nothing says what has made them.
    """
    note = out / NOTE
    if next(out.glob('*/*.pt'), None) is None:
        with whole_file(note) as part:
            part.write_text(json.dumps(made_by, indent=1) + '\n', 'utf-8')
    elif not note.exists():
        raise InputError(f'{out} has label maps, but no {NOTE} that says what made them: name another --out')
    with refusing(f'{note} cannot be read: name another --out'):
        noted = json.loads(note.read_text('utf-8'))
        other = [key for key, value in made_by.items() if noted[key] != value]
    if other:
        other = ', '.join(other)
        raise InputError(
            f'the label maps in {out} were made with other settings ({other}; see {NOTE}): name another --out'
        )


def digest(*parts: str | Tensor) -> str:
    """A checksum of texts and tensors."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(
            part.encode() if isinstance(part, str) else part.cpu().contiguous().view(-1).view(torch.uint8).numpy()
        )
    return sha.hexdigest()


def read_images(
    load: object, norm: Pixels | None, places: int, stride: int, items: list[tuple[Path, Path]]
) -> tuple[list[Path], list[Tensor], list[str]]:
    """The files to write, and their images (C, H, W), uint8 if the pipeline does not normalise them; and why other
    images cannot be used.

    Files that are there and hold a label map of as many places are kept.
    """
    from mmattn.classification.token_labels import read_label_map

    files, images, problems, side = [], [], [], places * stride
    for file, path in items:
        with suppress(InputError):
            if read_label_map(file).shape[2:] == (places, places):
                continue
        try:
            image = load_image(load, dict(img_path=str(path)))['img']
        except InputError as error:
            problems.append(describe(error))
            continue
        if image.max() > 255:
            problems.append(f'{path} has values of more than 8 bits, of which no label maps can be made')
            continue
        if image.dtype != np.uint8:  # LoadImageFromFile(to_float32=True); Pillow needs whole numbers, as they were
            image = image.astype(np.uint8)
        image = mmcv.imresize(image, (side, side), interpolation='bicubic', backend='pillow')
        if norm:
            image = mmcv.imnormalize(image, norm.mean, norm.std, norm.is_rgb)
        images.append(torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1))  # A grey image has no channels.
        files.append(file)
    return files, images, problems


@torch.no_grad()
def stride(model: nn.Module, channels: int) -> int:
    """The stride of the last map of a classifier, which takes images of so many channels."""
    side = 448  # a multiple of the strides 14, 16 and 32
    x = torch.zeros(1, channels, side, side, device=next(model.parameters()).device)
    last = model.extract_feat(x, stage='backbone')[-1]
    if last.dim() != 4:
        raise InputError(f'label maps need a backbone that returns feature maps, not a tensor {tuple(last.shape)}')
    return side // last.shape[2]


@torch.no_grad()
def label_maps(model: nn.Module, images: list[Tensor]) -> Tensor:
    """Images (C, H, W) for the data preprocessor -> their label maps (B, 2, TOP, h, w), on the CPU."""
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


if __name__ == '__main__':
    run_tool(main)
