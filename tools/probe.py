"""Which backbone suits my photos? An answer in minutes, before any training.

    python tools/probe.py data/own --backbones nat-t elsa-swin-t shunted-s --out probe
    python tools/probe.py data/own --backbones elsa-swin-t=checkpoints/elsa_swin_tiny.pth swin-t=none own/detector.py

The backbones are frozen. All get the same images, points and steps. What is probed depends on the data, which
tools/start.py would take, too:

folders of classes  k nearest neighbours in the last map's mean: the share of images whose class is found
label maps          a linear head on all maps, at random points: the mean IoU of the points
boxes               a linear head on the means of all maps in boxes, and in as many boxes of background: the mean over
                    the classes, one of them background, of the share that is found

A backbone is a name as in the names of configs, or a config. =FILE is a checkpoint, and =none random weights. Without
it, the weights are those that tools/start.py would take. --out gets probe.md with a table, and pictures: the first
three principal components of all maps as colours, and the predicted label maps.
"""

import argparse
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from mmattn.analysis import count_parameters
from mmattn.analysis.probing import Sample, at, components, joined, learn, neighbours, samples
from mmattn.own_data.config import HEADS, READERS, find_config
from mmattn.own_data.folder import LOOKED_FOR, Data
from mmattn.packages import mmseg_bases
from mmattn.weights import check_source
from mmguard.checks.pixels import Pixels, pixels_of
from mmguard.errors import CheckpointError, InputError, refusing
from mmguard.outputs import check_output, whole_file
from mmguard.prediction.drawing import beside, colors_of, draw_label_map, write_image
from mmguard.runs.running import run_tool

SCORES = dict(boxes='mean recall', maps='mIoU', folders='top-1')
#: images that are drawn
DRAWN = 4


class Probed(NamedTuple):
    """A backbone's row of the table, and its pictures."""

    cells: list[str]
    score: float
    components: list[np.ndarray]
    predicted: list[np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path, help="folder of images and annotations, or a file in COCO's format")
    parser.add_argument('--backbones', nargs='+', required=True, metavar='NAME[=WEIGHTS]')
    parser.add_argument('--out', type=Path, required=True, help='folder for the table and the pictures')
    parser.add_argument('--kind', choices=READERS, help='what to probe, if there are several (default: the first)')
    parser.add_argument('--images', type=int, default=200, help='most images to learn from; half as many are tested')
    parser.add_argument('--size', type=int, default=224, help='pixels of the short side (default: 224)')
    parser.add_argument('--steps', type=int, default=300, help='of each linear head (default: 300)')
    parser.add_argument('--save-embeddings', action='store_true', help="save the last map's mean of each image as .npz")
    args = parser.parse_args()
    for name, least in (('images', 2), ('size', 32), ('steps', 1)):
        if getattr(args, name) < least:
            raise InputError(f'--{name} must be {least} or more, not {getattr(args, name)}')
    path = args.data.expanduser().resolve()
    if not path.exists():
        raise InputError(f'there is no folder {args.data}')
    kind, found = read(path, [args.kind] if args.kind else [*READERS])
    check_output(args.out / 'probe.md')
    configs = {spec: config_of(spec.partition('=')[0], kind) for spec in dict.fromkeys(args.backbones)}
    for spec in configs:
        if (checkpoint := spec.partition('=')[2]) not in ('', 'none'):
            check_source(checkpoint, '')  # not after minutes with the backbones before it
    with TemporaryDirectory() as lists:
        parts = {
            part: samples(found, kind, path if path.is_dir() else path.parent, part, count, Path(lists))
            for part, count in (('train', args.images), ('val', max(1, args.images // 2)))
        }
    total = len(configs) * sum(map(len, parts.values()))
    rows = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task('Probing', total=total)
        for spec, cfg in configs.items():
            progress.update(task, description=spec)
            rows[spec] = probe(spec, cfg, kind, parts, len(found.classes), args, lambda: progress.advance(task))
    write(rows, kind, found, parts, args)


def read(path: Path, kinds: list[str]) -> tuple[str, Data]:
    """The kind of the data, and what lies there.

    Raises:
        InputError: if nothing can be probed.
    """
    errors = {}
    for kind in kinds:
        try:
            return kind, READERS[kind](path, [])
        except InputError as error:
            errors[kind] = str(error)
    clear = [error for kind, error in errors.items() if 'looked for' not in error and kind != 'folders']
    raise InputError(
        (clear or [*errors.values()][:1])[0] + ''.join(f'; or {LOOKED_FOR[kind]}' for kind in kinds[1:]) * (not clear)
    )


def config_of(name: str, kind: str) -> Config:
    """The config that has a backbone: a file, or one for data of this kind, if there is one."""
    if name.endswith('.py'):
        with refusing(f'{name} cannot be read'), mmseg_bases():
            return Config.fromfile(name)
    errors = []
    for head in sorted(HEADS, key=lambda head: HEADS[head].needs != kind):
        try:
            file, _ = find_config(head, name)
        except InputError as error:
            errors.append(error)
        else:
            with mmseg_bases():
                return Config.fromfile(file)
    raise errors[0]


def build(spec: str, cfg: Config) -> tuple[nn.Module, str]:
    """A backbone, and what is said of its weights."""
    name, _, checkpoint = spec.partition('=')
    node = cfg.model.get('backbone')
    if node is None:
        raise InputError(f'the model of {name} has no backbone')
    start = node.get('init_cfg') or (cfg.get('pretrained') or {}).get('init_cfg')
    if checkpoint:
        start = None if checkpoint == 'none' else dict(type='Pretrained', checkpoint=checkpoint)
    elif isinstance(start, dict) and isinstance(start.get('checkpoint'), str):
        try:
            check_source(start['checkpoint'], '')
        except CheckpointError as error:
            print(f'{name} has random weights: {error}')
            start = None
    else:
        start = None
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        backbone = MODELS.build(dict(node, init_cfg=start))
    backbone.init_weights()
    return backbone.eval().to(get_device()), Path(start['checkpoint']).name if start else '**random weights**'


def read_image(path: Path, size: int, pixels: Pixels) -> Tensor:
    """An image as a model gets it, (1, 3, H, W): its short side has so many pixels, the long one at most twice that."""
    image = mmcv.imrescale(mmcv.imread(path), (2 * size, size))
    image = ((image[..., ::-1] if pixels.is_rgb else image) - pixels.mean) / pixels.std
    return torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]


def preprocessor_of(cfg: Config) -> nn.Module | None:
    """The data preprocessor of a config's model, which is where the package looks for it."""
    node = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    if node is None:
        return None
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return MODELS.build(dict(dict(type='ClsDataPreprocessor'), **node))  # classifiers need not name it


@torch.inference_mode()
def probe(
    spec: str, cfg: Config, kind: str, parts: dict, classes: int, args: argparse.Namespace, advance: Callable
) -> Probed:
    """Probe a backbone, and draw what it sees."""
    backbone, weights = build(spec, cfg)
    pixels = pixels_of(cfg, preprocessor_of(cfg))
    features, pooled, shown, times = {}, {}, [], []
    for part, images in parts.items():
        features[part], pooled[part] = [], []
        for number, one in enumerate(images):
            x = read_image(one.path, args.size, pixels).to(get_device())
            began = time.perf_counter()
            maps = backbone(x)
            pooled[part].append(maps[-1].mean((2, 3)).cpu())  # waits for a GPU
            times.append(time.perf_counter() - began)
            dense = joined(maps, x.shape[2:])
            features[part].append(pooled[part][-1] if kind == 'folders' else at(dense, one.places))
            if part == 'val' and number < DRAWN:
                shown.append(dense.cpu())
            advance()
    x, y = ({part: torch.cat(each) for part, each in both.items()} for both in (features, labels_of(parts)))
    if kind == 'folders':
        predicted, maps = neighbours(x['train'], y['train'], x['val'], classes), []
    else:
        head = learn(x['train'], y['train'], classes + (kind == 'boxes'), args.steps)
        predicted = head(x['val']).argmax(1)
        maps = [head(one[0].flatten(1).T).argmax(1).unflatten(0, one.shape[2:]).numpy() for one in shown]
    score = score_of(kind, predicted, y['val'])
    if args.save_embeddings:
        with whole_file(args.out / f'{re.sub("[^a-zA-Z0-9.=-]+", "_", caption(spec))}.npz') as part:
            arrays = {f'{each}_embeddings': torch.cat(pooled[each]).numpy() for each in parts}
            paths = {f'{each}_images': np.array([one.path for one in parts[each]]) for each in parts}
            np.savez(part, **arrays, **paths)
    middle = sorted(times)[len(times) // 2]
    cells = [
        caption(spec.partition('=')[0]),
        weights,
        f'{count_parameters(backbone) / 1e6:.1f} M',
        f'{1000 * middle:.0f} ms',
        f'{100 * score:.1f}',
    ]
    return Probed(cells, score, components(shown), maps)


def labels_of(parts: dict[str, list[Sample]]) -> dict[str, list[Tensor]]:
    return {part: [one.labels for one in images] for part, images in parts.items()}


def score_of(kind: str, predicted: Tensor, labels: Tensor) -> float:
    """Top-1 of images, or the mean over the classes of the IoU of points or the recall of boxes, in [0, 1]."""
    right = predicted == labels
    if kind == 'folders':
        return right.float().mean().item()
    each = [((labels == one), (predicted == one) & (kind == 'maps')) for one in labels.unique()]
    return sum((right[truth].sum() / (truth | found).sum()).item() for truth, found in each) / len(each)


def write(rows: dict[str, Probed], kind: str, found: Data, parts: dict, args: argparse.Namespace) -> None:
    """Write and print the table, and draw the first images of validation."""
    best = sorted(rows.values(), key=lambda row: -row.score)
    labels = {part: torch.cat(each) for part, each in labels_of(parts).items()}
    constant = score_of(kind, torch.full_like(labels['val'], labels['train'].mode().values), labels['val'])
    counts = {part: len(images) for part, images in parts.items()}
    noise, constant = 100 / math.sqrt(counts['val']), 100 * constant
    text = [
        f'| backbone | weights | parameters | time per image | {SCORES[kind]} |',
        '|---|---|---|---|---|',
        *('| ' + ' | '.join(row.cells) + ' |' for row in best),
        '',
        f'{found.what} of {len(found.classes)} classes: {counts["train"]} images to learn from and {counts["val"]} to '
        f'test, with a short side of {args.size} pixels. The most frequent class alone has {constant:.1f}. With so '
        f'few images to test, differences under {noise:.0f} points say little. The backbones are frozen: after a '
        'training, the order can differ.',
    ]
    pictures = []
    colors = colors_of(found.palette, len(found.classes))
    for number, one in enumerate(parts['val'][:DRAWN]):
        photo = mmcv.imrescale(mmcv.imread(one.path), (2 * args.size, args.size))
        shape = photo.shape[1::-1]
        row = dict(photo=photo)
        if one.label_map:
            truth = cv2.resize(np.array(Image.open(one.label_map), np.uint8), shape, interpolation=cv2.INTER_NEAREST)
            row['truth'] = drawn(photo, truth, found.classes, colors)
        for spec, probed in rows.items():
            row[caption(spec)] = cv2.resize(probed.components[number], shape, interpolation=cv2.INTER_NEAREST)
            if one.label_map:
                labels = cv2.resize(probed.predicted[number].astype(np.uint8), shape, interpolation=cv2.INTER_NEAREST)
                row[f'{caption(spec)}, found'] = drawn(photo, labels, found.classes, colors)
        pictures.append(beside(row))
        write_image(args.out / f'image_{number}', pictures[-1])
    text += ['', *(f'![image {number}](image_{number}.jpg)' for number in range(len(pictures)))]
    with whole_file(args.out / 'probe.md') as part:
        part.write_text('\n'.join(text) + '\n', 'utf-8')
    print('\n'.join(text[: -len(pictures) - 1]))
    print(f'{args.out / "probe.md"} has the table and {len(pictures)} pictures.')


def caption(spec: str) -> str:
    """The names of a backbone and of its weights, without folders."""
    return '='.join(Path(each).name.removesuffix('.py') for each in spec.split('=', 1))


def drawn(photo: np.ndarray, labels: np.ndarray, names: list[str], colors: np.ndarray) -> np.ndarray:
    """A label map on a copy of its photo."""
    picture = photo.copy()
    draw_label_map(picture, labels, names, colors)
    return picture


if __name__ == '__main__':
    run_tool(main)
