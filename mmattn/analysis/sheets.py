"""Sheets of attention: the weights that one query gives to an image, by layer and head, as a figure."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from .attention import LayerAttention, Weights

MAX_HEADS = 8  # in a row of a sheet
#: layer -> how to read its pictures
CAPTIONS = {
    'ELSA': 'ELSA: k x k neighbours, mean over the channels of a head; the ghost head can make weights negative.',
    'GlobalSelfAttention': 'GlobalSelfAttention: content, then column and row of the query by relative position.',
    'MeanShiftAttention': "MeanShiftAttention: weights of the Gaussian kernel, or of the form's softmax.",
    'MeanShiftWindowAttention': "MeanShiftWindowAttention: weights of the kernel within the query's (shifted) window.",
    'NeighbourhoodAttention': (
        'NeighbourhoodAttention: k x k neighbours, moved into the map at the border; with dilation, there are gaps '
        'between them.'
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
    """A row per layer and part of its attention, a column per head.

    Args:
        layers: of :func:`mmattn.analysis.attention.query_attention`, at least one that has ``weights``; others are left
            out.
        picture: (H, W, 3), RGB from 0 to 1, the image that the backbone got.
        query: x and y in pixels of the image.

    Returns:
        the figure, and how to read it.
    """
    layers = [one for one in layers if one.weights is not None]
    rows = [(one, rows) for one in shown(layers) for rows in by_part(one)]
    heads = min(MAX_HEADS, max(sum(len(part.values) for part in parts) for _, parts in rows))
    height = 1.7 * min(2, max(0.5, picture.shape[0] / picture.shape[1])) + 0.25
    figure, axes = plt.subplots(
        len(rows), heads + 1, figsize=(1.7 * heads + 3, height * len(rows) + 1.5), squeeze=False, layout='constrained'
    )
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for (one, parts), (first, *others) in zip(rows, axes):
        draw_query(first, picture, one, query, parts[0].part)
        maps = [(part, head) for part in parts for head in range(len(part.values))]
        # Of several groups of heads, the same number of each.
        maps = [maps[i * len(maps) // min(heads, len(maps))] for i in range(min(heads, len(maps)))]
        for axis, (part, head) in zip(others, maps):
            draw_weights(axis, picture, one, part, head)
    most = max(sum(len(part.values) for part in parts) for _, parts in rows)
    caption = (
        'Left: the image as the network sees it, with the query. Right: the weight that the query gives to each '
        'position, over the darkened image; the brightest has the number above. Where weights are negative, these are '
        'blue and others red. "Outside" is the share that goes to padding. A frame in the corner enlarges a region. '
    )
    caption += f'Of up to {most} heads, {heads} are shown. ' * (most > heads)
    caption += ' '.join(text for layer, text in CAPTIONS.items() if layer in {one.layer for one, _ in rows})
    return figure, caption


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


def draw_query(axis: plt.Axes, picture: np.ndarray, one: LayerAttention, query: tuple, part: str) -> None:
    """The image with the query and its position on the map."""
    axis.imshow(picture, extent=(0, picture.shape[1], picture.shape[0], 0))
    row, column = (i * one.stride for i in one.query)
    axis.add_patch(plt.Rectangle((column, row), one.stride, one.stride, fill=False, ec='white', lw=2.5))
    axis.add_patch(plt.Rectangle((column, row), one.stride, one.stride, fill=False, ec='red', lw=1.2))
    text = f'stage {one.stage + 1}, block {one.block + 1}\nstride {one.stride}\n{one.layer}\n{part}'
    axis.set_ylabel(text.strip(), rotation=0, ha='right', va='center', fontsize=8)


def draw_weights(axis: plt.Axes, picture: np.ndarray, one: LayerAttention, part: Weights, head: int) -> None:
    """The weights of a head over the image."""
    height, width = picture.shape[:2]
    values = np.nan_to_num(part.values[head].float().cpu().numpy())
    size, outside = np.abs(values), outside_of(one, part, (height, width))
    largest = size[~outside].max(initial=0) or 1.0
    lost = size[outside].sum() / (size.sum() or 1.0)
    values, size = values.clip(-largest, largest), size.clip(0, largest)
    signed = values.min() < -1e-3 * largest
    colors = plt.get_cmap('bwr' if signed else 'inferno')(values / largest / 2 + 0.5 if signed else values / largest)
    colors[..., 3] = 0.85 * np.sqrt(size / largest)
    gray = picture.mean(2) * 0.55
    side = one.stride * part.cell
    left, top = part.left * one.stride, part.top * one.stride
    extent = (left, left + values.shape[1] * side, top + values.shape[0] * side, top)
    seen = np.argwhere(size >= 1e-6 * size.max())
    box = np.r_[seen.min(0), seen.max(0) + 1] * side + np.tile((top, left), 2)  # top, left, bottom, right
    views = [(axis, (0, width, height, 0))]
    if not part.part and max(box[2] - box[0], box[3] - box[1]) < 0.45 * min(height, width):
        x = 0.0 if box[1] + box[3] > width else 0.55
        y = 0.55 if box[0] + box[2] > height else 0.0
        views.append((axis.inset_axes((x, y, 0.45, 0.45)), (box[1], box[3], box[2], box[0])))
        axis.add_patch(plt.Rectangle((box[1], box[0]), box[3] - box[1], box[2] - box[0], fill=False, ec='w', lw=0.6))
    for view, (x1, x2, y2, y1) in views:
        view.imshow(gray, cmap='gray', vmin=0, vmax=1, extent=(0, width, height, 0))
        view.imshow(colors, extent=extent, interpolation='nearest')
        view.set(xticks=[], yticks=[], xlim=(x1, x2), ylim=(y2, y1), aspect='equal', facecolor='0.3')
        for spine in view.spines.values():
            spine.set(visible=view is not axis, color='white')
    cells = f' ({part.cell} x {part.cell})' if part.cell > 1 else ''
    beyond = f', {lost:.0%} outside' if lost > 0.005 else ''
    axis.set_title(f'head {part.first_head + head + 1}{cells}: {largest:.2g}{beyond}', fontsize=7, pad=2)


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
