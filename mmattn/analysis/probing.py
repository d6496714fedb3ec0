"""What the maps of a frozen backbone tell: nearest neighbours, linear heads and principal components."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou, roi_align

from ..errors import InputError, refusing
from ..own_data.folder import Data
from ..packages import require

#: kind of data -> the package whose datasets read it
SCOPES = dict(boxes='mmdet', maps='mmseg', folders='mmpretrain')
#: random points of a label map
POINTS = 256
#: neighbours of an image, and the temperature of their votes, as in the evaluation of DINO (arXiv:2104.14294)
NEIGHBOURS, TEMPERATURE = 20, 0.07


class Sample(NamedTuple):
    """An image, and where in it which labels are: at points (N, 2) or in boxes (N, 4), in parts of its sides."""

    path: str
    labels: Tensor
    places: Tensor | None = None
    label_map: str = ''


def samples(found: Data, kind: str, folder: Path, part: str, count: int, lists: Path) -> list[Sample]:
    """Images of a part, drawn at random, with what is labelled in them.

    Args:
        found: what lies in ``folder``.
        kind: a key of ``SCOPES``.
        part: "train" or "val".
        count: number of images, at most.
        lists: a folder for the lists of images that ``found`` has and that are not written yet.

    Raises:
        InputError: if nothing is labelled.
        MissingPackage: if the package whose datasets read the images is missing.
    """
    require(SCOPES[kind], 'reading these images')
    arguments = dict(**found.common, **found.datasets[part])
    file = folder / arguments.get('ann_file', '')
    if file in found.files:
        arguments['ann_file'] = str(lists / file.name)
        (lists / file.name).write_text(found.files[file], 'utf-8')
    arguments = dict(type='CocoDataset') | arguments
    with DefaultScope.overwrite_default_scope(SCOPES[kind]):
        dataset = DATASETS.build(
            dict(arguments, data_root=str(folder), metainfo=dict(classes=found.classes), pipeline=[])
        )
    order = Random(0).sample(range(len(dataset)), min(count, len(dataset)))
    made = [sample(dataset.get_data_info(index), kind, index, len(found.classes)) for index in order]
    if not any(len(one.labels) for one in made):
        raise InputError(f'{folder}: the images for {part} have nothing that is annotated')
    return [one for one in made if len(one.labels)]


def sample(info: dict, kind: str, seed: int, classes: int) -> Sample:
    """What is probed of an image."""
    path, generator = info['img_path'], torch.Generator().manual_seed(seed)
    if kind == 'folders':
        return Sample(path, torch.tensor([info['gt_label']]))
    if kind == 'maps':
        with refusing(f'{info["seg_map_path"]} cannot be read'), Image.open(info['seg_map_path']) as image:
            label_map = torch.from_numpy(np.array(image, np.uint8)).long()
        places = torch.rand(POINTS, 2, generator=generator)
        x, y = (places * torch.tensor(label_map.shape[::-1])).long().unbind(1)
        labels = label_map[y, x]
        return Sample(path, labels[labels < classes], places[labels < classes], info['seg_map_path'])
    size = torch.tensor([info['width'], info['height']] * 2)
    objects = [one for one in info['instances'] if not one['ignore_flag']]
    boxes = torch.tensor([one['bbox'] for one in objects]).reshape(-1, 4) / size
    # background: boxes of the same sizes elsewhere, which overlap no object much
    sizes = (boxes[:, 2:] - boxes[:, :2]).repeat(20, 1)
    corner = torch.rand(len(sizes), 2, generator=generator) * (1 - sizes)
    others = torch.cat([corner, corner + sizes], 1)
    others = others[(box_iou(others, boxes) < 0.2).all(1)][: len(boxes)] if len(boxes) else others
    labels = torch.tensor([one['bbox_label'] for one in objects] + [classes] * len(others), dtype=torch.long)
    return Sample(path, labels, torch.cat([boxes, others]))


def joined(maps: tuple[Tensor, ...], image: tuple[int, int]) -> Tensor:
    """All maps as one, in the size of the first whose stride is 8 or more."""
    size = next((one.shape[2:] for one in maps if one.shape[2] * 7 < image[0]), maps[-1].shape[2:])
    return torch.cat([F.interpolate(one, size, mode='bilinear', align_corners=False) for one in maps], 1)


def at(dense: Tensor, places: Tensor) -> Tensor:
    """The features of a map (1, C, H, W) at points (N, 2), or the means in boxes (N, 4): (N, C), on the CPU."""
    places = places.to(dense)
    if places.shape[1] == 2:
        return F.grid_sample(dense, 2 * places[None, None] - 1, align_corners=False)[0, :, 0].T.cpu()
    sides = torch.tensor(dense.shape[:1:-1]).repeat(2).to(dense)
    return roi_align(dense, [places * sides], 3, aligned=True).mean((2, 3)).cpu()


def neighbours(x: Tensor, y: Tensor, queries: Tensor, classes: int) -> Tensor:
    """The classes (M,) of queries (M, C): the nearest of x (N, C) by cosine vote for theirs, y (N,).

    A vote weighs exp(cosine / temperature).
    """
    close, which = (F.normalize(queries) @ F.normalize(x).T).topk(min(NEIGHBOURS, len(x)))
    votes = F.one_hot(y[which], classes) * (close / TEMPERATURE).exp()[..., None]
    return votes.sum(1).argmax(1)


@torch.inference_mode(False)
def learn(x: Tensor, y: Tensor, classes: int, steps: int) -> Callable[[Tensor], Tensor]:
    """A linear head that gives logits (M, classes) of features (M, C), which it standardises. It begins at zero, and
    learns from all x (N, C) and y (N,) in each step."""
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    standard, y = (x - mean) / std, y.clone()  # not those of an inference mode
    head = nn.Linear(x.shape[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-2)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(head(standard), y).backward()
            optimizer.step()
    return lambda features: head((features - mean) / std).detach()


def components(maps: Sequence[Tensor]) -> list[np.ndarray]:
    """The first three principal components of maps (1, C, H, W), as colours (H, W, 3)."""
    flat = torch.cat([one[0].flatten(1).T for one in maps])
    flat = (flat - flat.mean(0)) / flat.std(0).clamp(min=1e-6)
    torch.manual_seed(0)
    colours = flat @ torch.pca_lowrank(flat, q=3)[2]
    low, high = colours.quantile(0.02, 0), colours.quantile(0.98, 0)
    colours = (255 * (colours - low) / (high - low).clamp(min=1e-6)).clamp(0, 255).byte()
    split = colours.split([one.shape[2] * one.shape[3] for one in maps])
    return [each.unflatten(0, one.shape[2:]).numpy() for each, one in zip(split, maps)]
