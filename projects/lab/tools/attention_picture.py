"""Draw what one point of a photo attends to, with several kinds of attention in one trained ViT.

    python projects/lab/tools/attention_picture.py checkpoints/focus_vit_s.pth docs/images/attention.jpg

The checkpoint is that of focus_weights.py, the photo scikit-image's cat. Each ViT has another attention in its last two
blocks, which starts from these weights and is not trained. projects/lab/docs/focus.md says how to read the picture.
tools/analyze.py draws the attention of any trained model.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from torch import Tensor

from mmattn.analysis.attention import LayerAttention, Weights, query_attention
from mmattn.analysis.sheets import draw_weights
from mmattn.backbones import DINOViT
from mmguard.errors import InputError
from mmguard.outputs import check_output, whole_file
from mmguard.runs.running import run_tool

PATCH = 14
BLOCKS, CHANGED = 12, 2
SIDES = 42, 63  #: of the map, in patches
QUERY = 0.415, 0.36  #: fractions of width and height
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NEIGHBOURS = dict(type='NeighbourhoodAttention', kernel_size=13, rel_pos_bias=False)
#: name, and what a query sees -> token mixer of the last blocks
ATTENTION = {
    ('self-attention', 'all patches, as trained'): None,
    ('mean shift', 'all patches'): dict(type='MeanShiftAttention', proj_bias=True),
    ('shunted', '2 x 2 patches merged'): dict(type='ShuntedAttention'),
    ('neighbourhood', '13 x 13 patches'): NEIGHBOURS,
    ('dilated neighbourhood', 'every third patch'): dict(NEIGHBOURS, dilation=3),
    ('window', '21 x 21 patches'): dict(type='WindowAttention', window_size=21),
}
COLOURS = ScalarMappable(PowerNorm(0.4, 0, 1), 'inferno')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint')
    parser.add_argument('out', type=Path, help='picture to write')
    args = parser.parse_args()
    check_output(args.out)
    try:
        from skimage.data import chelsea
    except ModuleNotFoundError:
        raise InputError('the photo is in scikit-image: pip install scikit-image') from None
    photo = torch.tensor((chelsea() / 255 - MEAN) / STD, dtype=torch.float32).permute(2, 0, 1)[None]
    image = F.interpolate(photo, [side * PATCH for side in SIDES], mode='bicubic', antialias=True)
    picture = (image[0].permute(1, 2, 0).numpy() * STD + MEAN).clip(0, 1)
    query = QUERY[0] * picture.shape[1], QUERY[1] * picture.shape[0]
    seen, maps = zip(*(look(args.checkpoint, attention, image, query) for attention in ATTENTION.values()))
    figure = draw(picture, query, seen, maps)
    with whole_file(args.out) as part:
        figure.savefig(part, dpi=100, facecolor=figure.get_facecolor(), pil_kwargs=dict(quality=90, subsampling=0))
    print(f'{args.out} is written')


@torch.no_grad()
def look(file: str, attention: dict | None, image: Tensor, query: Sequence[float]) -> tuple[LayerAttention, Tensor]:
    """What the query attends to in the last block, and the last map (C, H, W)."""
    mixers = [None] * (BLOCKS - CHANGED) + [attention] * CHANGED
    init_cfg = dict(type='Pretrained', checkpoint=file, warm_start=attention is not None)
    backbone = DINOViT(arch='vit_small_patch14_dinov2', attention=mixers, init_cfg=init_cfg)
    backbone.init_weights()
    (last_map,) = backbone.eval()(image)
    return query_attention(backbone, image, *query)[-1], last_map[0]


def draw(picture: np.ndarray, query: Sequence[float], seen: Sequence, maps: Sequence[Tensor]) -> plt.Figure:
    """The photo with the query above the principal components of the first map; beside them, the weights of each."""
    height, width = picture.shape[:2]
    figure, axes = plt.subplots(2, 4, figsize=(12, 6 * height / width + 1.2), facecolor='#16191d')
    figure.subplots_adjust(0.005, 0.012, 0.995, 0.9, wspace=0.02, hspace=0.22)
    axes[0, 0].imshow(picture, extent=(0, width, height, 0))
    axes[0, 0].plot(*query, 'o', ms=13, mfc='none', mec='white', mew=4)
    axes[0, 0].plot(*query, 'o', ms=13, mfc='none', mec='red', mew=2)
    axes[1, 0].imshow(components(maps[0]))
    texts = ('photo', 'red: the query, a point in one eye'), ('features', 'of the last map, as colours')
    titles = dict(zip(axes[:, 0], texts))
    for axis, (name, sees), one, other in zip(axes[:, 1:].flat, ATTENTION, seen, maps, strict=True):
        mean = mean_of_heads(one, (height // PATCH, width // PATCH))
        draw_weights(axis, picture, one, mean, 0, (0, width, height, 0), COLOURS)
        places = (mean.values[0] != 0).nonzero().numpy() * PATCH
        (top, left), (rows, columns) = places.min(0), np.ptp(places, 0) + PATCH
        if (rows, columns) != (height, width):
            axis.add_patch(plt.Rectangle((left, top), columns, rows, fill=False, ec='white', lw=1, ls=':'))
        difference = 100 * float((other - maps[0]).norm() / maps[0].norm())
        titles[axis] = name, sees + f'; map differs by {difference:.1f} %' * (other is not maps[0])
    for axis, (name, text) in titles.items():
        axis.set_title(name, color='white', fontsize=12, weight='bold', pad=18)
        axis.text(0.5, 1.02, text, color='0.8', fontsize=9.5, ha='center', va='bottom', transform=axis.transAxes)
        axis.axis('off')
    return figure


def mean_of_heads(one: LayerAttention, shape: tuple[int, int]) -> Weights:
    """The mean of the weights that all heads of a layer give to the positions of a map (H, W); those of a cell are
    shared out among its positions."""
    total = torch.zeros(shape)
    for part in one.weights:
        total += torch.kron(part.values.sum(0), torch.ones(2 * [part.cell]) / part.cell**2)[: shape[0], : shape[1]]
    return Weights('', total[None] / sum(len(part.values) for part in one.weights))


def components(x: Tensor) -> np.ndarray:
    """The three first principal components of a map (C, H, W) as colours (H, W, 3)."""
    features = x.flatten(1).T - x.flatten(1).mean(1)
    projected = features @ torch.linalg.svd(features, full_matrices=False)[2][:3].T
    low, high = projected.quantile(torch.tensor((0.01, 0.99)), 0)
    return ((projected - low) / (high - low)).clamp(0, 1).view(*x.shape[1:], 3).numpy()


if __name__ == '__main__':
    run_tool(main)
