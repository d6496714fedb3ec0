"""Sheets of attention: the weights that one query gives to an image, by layer and head, as a figure."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cm import ScalarMappable

from .attention import LayerAttention, Weights

MAX_HEADS = 8  # of a layer, in a sheet
#: layer -> how to read its pictures
CAPTIONS = {
    'AggregatedAttention': (
        'AggregatedAttention: k x k neighbours, then pooled tokens as cells. One softmax gives the weights of both; '
        'each picture has its own scale. Learnable tokens can make weights of neighbours negative.'
    ),
    'ELSA': 'ELSA: k x k neighbours, mean over the channels of a head; the ghost head can make weights negative.',
    'GlobalSelfAttention': 'GlobalSelfAttention: content, then column and row of the query by relative position.',
    'MeanShiftAttention': "MeanShiftAttention: weights of the Gaussian kernel, or of the form's softmax.",
    'MeanShiftWindowAttention': "MeanShiftWindowAttention: weights of the kernel within the query's (shifted) window.",
    'NeighbourhoodAttention': (
        'NeighbourhoodAttention: k x k neighbours, moved into the map at the border; with dilation, there are gaps '
        'between them.'
    ),
    'RankAugmentedAttention': (
        'RankAugmentedAttention: weights before the factor of the query; rotary positions can make them negative.'
    ),
    'ShuntedAttention': 'ShuntedAttention: each cell is a merged token; the groups of heads merge n x n positions.',
    'ShiftWindowMSA': "ShiftWindowMSA: softmax within the query's (shifted) window.",
    'SpatialReductionAttention': 'SpatialReductionAttention: each cell is a merged token.',
    'EfficientMultiheadAttention': 'EfficientMultiheadAttention: each cell is a merged token.',
    'WindowAttention': "WindowAttention: softmax within the query's (shifted) window.",
    'LocalAttention': 'LocalAttention: weights of equation 4 in its window or among its neighbours.',
    'DepthwiseConv': 'DepthwiseConv: its filters; heads are channels.',
    'DynamicDepthwiseConv': 'DynamicDepthwiseConv: the filters of this image; heads are channels.',
    'DecoupledDynamicFilter': 'DecoupledDynamicFilter: the filters at the query; heads are channels.',
}


def attention_sheet(
    layers: list[LayerAttention], picture: np.ndarray, query: tuple[float, float]
) -> tuple[plt.Figure, str]:
    """For each layer and part of its attention, the image with the query, and a picture of each head.

    Args:
        layers: of :func:`mmattn.analysis.attention.query_attention`, at least one that has ``weights``; others are left
            out.
        picture: (H, W, 3), RGB from 0 to 1, the image that the backbone got.
        query: x and y in pixels of the image.

    Returns:
        the figure, and how to read it.
    """
    layers = [one for one in layers if one.weights is not None]
    groups, most = [], 0
    for one, parts in [(layer, parts) for layer in shown(layers) for parts in by_part(layer)]:
        heads = [(part, head) for part in parts for head in range(len(part.values))]
        most = max(most, len(heads))
        count = min(MAX_HEADS, len(heads))  # of several groups of heads, the same number of each
        groups.append((one, parts, [heads[i * len(heads) // count] for i in range(count)]))
    starts, columns = packed([1 + len(heads) for *_, heads in groups])
    rows = 1 + starts[-1] // columns
    height = 1.7 * min(2, max(0.5, picture.shape[0] / picture.shape[1])) + 0.35
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.7 * columns, height * rows + 1.7), squeeze=False, layout='constrained'
    )
    for axis in axes.flat:
        axis.axis('off')
    signed = any(
        part.values[head].min() < -1e-3 * part.values[head].abs().max() for *_, g in groups for part, head in g
    )
    colors = ScalarMappable(plt.Normalize(-1 if signed else 0, 1), 'bwr' if signed else 'inferno')
    for (one, parts, heads), start in zip(groups, starts):
        first, *others = axes.flat[start : start + 1 + len(heads)]
        view = view_of(one, parts, picture.shape[:2])
        draw_query(first, picture, one, view, parts[0].part)
        for axis, (part, head) in zip(others, heads):
            draw_weights(axis, picture, one, part, head, view, colors)
    bar = figure.colorbar(colors, ax=axes, location='bottom', shrink=0.5, aspect=50, pad=0.02)
    bar.set_label("weight / the head's largest weight", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    caption = (
        'First picture of a layer: the image as the network sees it, with the query in red. The others: the weight '
        'that the query gives to each position, over the darkened image; above is the largest weight of the head. If '
        'the first picture has a white frame, the others show what is in it. "In padding" is the share of the weights '
        'that goes to padding. '
    )
    caption += f'Of up to {most} heads, {MAX_HEADS} are shown. ' * (most > MAX_HEADS)
    caption += ' '.join(text for layer, text in CAPTIONS.items() if layer in {one.layer for one, *_ in groups})
    return figure, caption


def packed(lengths: list[int]) -> tuple[list[int], int]:
    """Places of groups of cells in a grid, row by row, no group in two rows; and the number of columns, at most 12,
    for the smallest grid. The titles of a row count as two cells."""
    grids = []
    for columns in range(max(lengths), max(12, *lengths) + 1):
        starts, end = [], 0
        for length in lengths:
            end += -end % columns if end % columns + length > columns else 0
            starts.append(end)
            end += length
        grids.append((-(-end // columns) * (columns + 2), columns, starts))
    _, columns, starts = min(grids)
    return starts, columns


def shown(layers: list[LayerAttention]) -> list[LayerAttention]:
    """The last layer of each stage, and the one before it for attention of one part; six layers of a ViT."""
    stages = [[one for one in layers if one.stage == stage] for stage in sorted({one.stage for one in layers})]
    if len(stages) > 6:
        return [one for stage in spread(stages, 6) for one in stage]
    return [one for stage in stages for one in stage[-1 if stage[0].weights[0].part else -2 :]]


def spread(items: Sequence, most: int) -> list:
    """At most so many items, evenly spread, the last one among them."""
    count = min(most, len(items))
    return [items[(i + 1) * len(items) // count - 1] for i in range(count)]


def by_part(one: LayerAttention) -> list[list[Weights]]:
    return [[w for w in one.weights if w.part == part] for part in dict.fromkeys(w.part for w in one.weights)]


def view_of(one: LayerAttention, parts: list[Weights], shape: tuple[int, int]) -> tuple[float, float, float, float]:
    """What the pictures of a layer show of an image (H, W): left, right, bottom, top. It is the whole image, or what is
    around the query, if all weights are within a third of the image."""
    height, width = shape
    boxes = []
    for part in parts:
        seen = np.argwhere((part.values.abs() >= 1e-6 * part.values.abs().max()).any(0).cpu().numpy())
        boxes.append((np.r_[seen.min(0), seen.max(0) + 1] * part.cell + np.tile((part.top, part.left), 2)) * one.stride)
    (top, left), (bottom, right) = np.min(boxes, 0)[:2], np.max(boxes, 0)[2:]
    scale = 1.1 * max((bottom - top) / height, (right - left) / width)  # of the view, which has the image's shape
    if scale > 1 / 3:
        return 0, width, height, 0
    x, y = (left + right) / 2, (top + bottom) / 2
    return x - scale * width / 2, x + scale * width / 2, y + scale * height / 2, y - scale * height / 2


def draw_query(axis: plt.Axes, picture: np.ndarray, one: LayerAttention, view: tuple, part: str) -> None:
    """The image with the position of the query on the map, and a frame around what the other pictures show."""
    height, width = picture.shape[:2]
    axis.imshow(picture, extent=(0, width, height, 0))
    row, column = (i * one.stride for i in one.query)
    axis.add_patch(plt.Rectangle((column, row), one.stride, one.stride, fill=False, ec='white', lw=2.5))
    axis.add_patch(plt.Rectangle((column, row), one.stride, one.stride, fill=False, ec='red', lw=1.2))
    if view[1] - view[0] < width:
        for color, line in (('black', 2), ('white', 1)):
            corner = view[0], view[3]
            axis.add_patch(plt.Rectangle(corner, view[1] - view[0], view[2] - view[3], fill=False, ec=color, lw=line))
    axis.set(xlim=(0, width), ylim=(height, 0))
    lines = f'stage {one.stage + 1}, block {one.block + 1}, stride {one.stride}', one.layer, part
    axis.set_title('\n'.join(filter(None, lines)), fontsize=7, pad=2, weight='bold')


def draw_weights(
    axis: plt.Axes,
    picture: np.ndarray,
    one: LayerAttention,
    part: Weights,
    head: int,
    view: tuple[float, float, float, float],
    scale: ScalarMappable,
) -> None:
    """The weights of a head over the image, where their size is their opacity, too."""
    height, width = picture.shape[:2]
    values = np.nan_to_num(part.values[head].float().cpu().numpy())
    size, outside = np.abs(values), outside_of(one, part, (height, width))
    largest = size.max(initial=0) or 1.0
    colors = scale.to_rgba(values / largest)
    colors[..., 3] = 0.85 * np.sqrt(size / largest)
    side = one.stride * part.cell
    left, top = part.left * one.stride, part.top * one.stride
    axis.imshow(picture.mean(2) * 0.55, cmap='gray', vmin=0, vmax=1, extent=(0, width, height, 0))
    extent = (left, left + values.shape[1] * side, top + values.shape[0] * side, top)
    axis.imshow(colors, extent=extent, interpolation='nearest')
    axis.set(xlim=view[:2], ylim=view[2:], aspect='equal')
    axis.add_patch(plt.Rectangle((0, 0), 1, 1, transform=axis.transAxes, fc='0.3', zorder=-1))
    cells = f' ({part.cell} x {part.cell})' if part.cell > 1 else ''
    lost = size[outside].sum() / (size.sum() or 1.0)
    padding = f'\n{lost:.0%} in padding' if lost > 0.005 else ''
    axis.set_title(f'head {part.first_head + head + 1}{cells}: {largest:.2g}{padding}', fontsize=7, pad=2)


def outside_of(one: LayerAttention, part: Weights, shape: tuple[int, int]) -> np.ndarray:
    """Which weights are of positions outside the image: those in padding."""
    sides = zip((part.top, part.left), part.values.shape[1:], shape)
    y, x = ((offset + np.arange(n) * part.cell, -(-size // one.stride)) for offset, n, size in sides)
    rows, columns = ((start <= -part.cell) | (start >= length) for start, length in (y, x))
    return rows[:, None] | columns


def summary(one: LayerAttention, shape: tuple[int, int]) -> dict:
    """The numbers of a layer: of each head, the sum and the largest of its weights and where it is, the mean distance
    from the query, and the share of the weights outside the image; distance and share by their absolute values."""
    heads, query = [], [(i + 0.5) * one.stride for i in one.query]
    for part in one.weights:
        sides = zip((part.top, part.left), part.values.shape[1:])
        places = [(offset + (np.arange(n) + 0.5) * part.cell) * one.stride for offset, n in sides]
        y, x = np.meshgrid(*places, indexing='ij')
        distance, outside = np.hypot(y - query[0], x - query[1]), outside_of(one, part, shape)
        for head, values in enumerate(part.values.double().cpu().numpy(), part.first_head + 1):
            best = np.abs(values).argmax()
            share = np.abs(values) / (np.abs(values).sum() or 1.0)
            numbers = dict(sum=values.sum(), largest=values.flat[best], x=x.flat[best], y=y.flat[best])
            numbers |= dict(mean_distance=(share * distance).sum(), outside=share[outside].sum())
            numbers = {key: float(value) for key, value in numbers.items()}
            heads.append(dict(part=part.part, head=head, cell=part.cell, **numbers))
    place = dict(stage=one.stage + 1, block=one.block + 1, layer=one.layer, stride=one.stride)
    return dict(place, query=one.query, heads=heads)
