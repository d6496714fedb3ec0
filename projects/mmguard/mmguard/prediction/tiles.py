"""Images cut into overlapping tiles, and the predictions of the tiles joined into those of the image."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import InstanceData
from torchvision.ops import batched_nms

#: a box ends at the edge of its tile if it is nearer than this part of the tile's side
EDGE = 0.02
#: intersection over union, within the overlap, of two parts of one object
AGREEMENT = 0.5


class Tile(NamedTuple):
    """A tile, and its core, from which a label map is taken: boxes x1, y1, x2, y2 in pixels of the image.

    Tiles overlap. Cores do not: a pixel is in the core of the tile in which it lies farthest from an edge.
    """

    box: tuple[int, int, int, int]
    core: tuple[int, int, int, int]


def cut(height: int, width: int, tile: int, overlap: int) -> list[Tile]:
    """Cut an image into square tiles of equal size. The last ones are shifted inwards, so that they end at its edge.

    Args:
        height, width: of the image, in pixels.
        tile: side of a tile; an image that is smaller has one tile of its own size in that direction.
        overlap: pixels that neighbours share, at least; smaller than ``tile``.
    """
    columns, rows = _cut_side(width, tile, overlap), _cut_side(height, tile, overlap)
    return [
        Tile((x1, y1, x2, y2), (left, top, right, bottom))
        for (y1, y2, top, bottom), (x1, x2, left, right) in product(rows, columns)
    ]


def _cut_side(size: int, tile: int, overlap: int) -> list[tuple[int, int, int, int]]:
    starts = [*range(0, size - tile, tile - overlap), max(size - tile, 0)]
    ends = [min(start + tile, size) for start in starts]
    middles = [0, *((end + start) // 2 for end, start in zip(ends, starts[1:])), size]
    return list(zip(starts, ends, middles, middles[1:]))


def join_maps(maps: Iterable[np.ndarray], tiles: Sequence[Tile], height: int, width: int) -> np.ndarray:
    """The label map (height, width) of an image, from those of its tiles, each (H, W).

    Each pixel has the label of the tile in which it lies farthest from the edge.
    """
    whole = None
    for labels, ((x, y, *_), (x1, y1, x2, y2)) in zip(maps, tiles):
        whole = np.empty((height, width), labels.dtype) if whole is None else whole
        whole[y1:y2, x1:x2] = labels[y1 - y : y2 - y, x1 - x : x2 - x]
    return whole


class Detection(NamedTuple):
    """An object in an image; its box is x1, y1, x2, y2 in pixels, its mask COCO's run-length code, or None."""

    box: tuple[float, float, float, float]
    label: int
    score: float | None
    mask: dict | None = None


def detections(instances: InstanceData, x: int, y: int, height: int, width: int, factor: int = 1) -> list[Detection]:
    """What a detector found in a tile, or what is annotated there, placed in its image.

    Args:
        instances: bboxes (n, 4) in pixels of the tile, labels (n,), scores (n,) of predictions, and masks (n, H, W) if
            it has them.
        x, y, height, width: where the tile begins in the image, and the sides of the image.
        factor: enlarges boxes and masks, as the tile was enlarged.
    """
    boxes = torch.as_tensor(getattr(instances.bboxes, 'tensor', instances.bboxes)) * factor
    boxes = (boxes + boxes.new_tensor([x, y, x, y])).tolist()
    scores, masks = instances.get('scores'), [None] * len(boxes)
    if 'masks' in instances:
        masks = instances.masks.to_ndarray() if hasattr(instances.masks, 'to_ndarray') else instances.masks
        masks = np.asarray(masks, bool).repeat(factor, 1).repeat(factor, 2)
        masks = [_encode(mask, x, y, height, width) for mask in masks]
    scores = [None] * len(boxes) if scores is None else scores.tolist()
    return list(map(Detection, map(tuple, boxes), instances.labels.tolist(), scores, masks))


def _encode(mask: np.ndarray, x: int, y: int, height: int, width: int) -> dict:
    """The code of a mask whose first pixel is x, y of an image, made without a mask of the size of the image."""
    from pycocotools.mask import frPyObjects

    filled = np.flatnonzero(mask.any(0))
    first, last = (filled[0], filled[-1] + 1) if len(filled) else (0, 0)
    columns = np.zeros((last - first, height), bool)
    columns[:, y : y + len(mask)] = mask[:, first:last].T
    edges = np.flatnonzero(np.diff(columns.ravel(), prepend=False, append=False)) + (x + first) * height
    ends = [*edges, *([height * width] if not len(edges) or edges[-1] < height * width else [])]
    return frPyObjects(dict(size=[height, width], counts=np.diff(ends, prepend=0).tolist()), height, width)


def mask_in_box(code: dict) -> tuple[int, int, np.ndarray]:
    """The box of a mask, from its code, made without a mask of the size of the image.

    Returns:
        the column x and row y where the box begins, and its mask (H, W), bool.
    """
    from pycocotools.mask import toBbox

    x, y, width, height = map(int, toBbox(code))
    ends = np.cumsum(_counts(code['counts']))
    column, row = np.divmod(ends, code['size'][0])
    ends = ((column - x) * height + np.clip(row - y, 0, height)).clip(0, width * height)
    inside = np.repeat(np.arange(len(ends)) % 2 == 1, np.diff(ends, prepend=0))
    return x, y, inside.reshape(width, height).T


def _counts(text: bytes) -> np.ndarray:
    """The lengths of the runs, of zeros and of ones in turn, in a compressed code, as rleFrString of pycocotools reads
    them, which has no function for it.

    A number has five bits in each byte, the lowest ones first; 32 marks that another byte follows. From the fourth
    number on, it is the difference to the one two before.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    is_last = digits < 32
    starts = np.flatnonzero(np.append(True, is_last)[:-1])
    place = np.arange(len(digits)) - np.repeat(starts, np.diff(starts, append=len(digits)))
    digits = np.where(is_last & (digits & 16 > 0), digits - 32, digits & 31)  # 16 in the last one: negative
    counts = np.add.reduceat(digits << 5 * place, starts)
    for part in (counts[1::2], counts[2::2]):
        part[:] = np.cumsum(part)
    return counts


def join_detections(
    found: Sequence[list[Detection]], tiles: Sequence[Tile], height: int, width: int, iou_threshold: float = 0.5
) -> list[Detection]:
    """The objects of an image, from those detected in its tiles.

    A detection is cut if its box ends at an edge of its tile that is not an edge of the image. Two detections of two
    tiles are of one object if one of them is cut, both have one class, and their parts in the pixels that the tiles
    share have an IoU of at least 0.5 (of masks, or of boxes if there are no masks). A detection is joined with at most
    one of another tile: of all pairs between two tiles, those are joined whose products of IoU and scores have the
    largest sum. An object can be joined from many tiles, such as four with a common corner. Without an overlap, nothing
    is joined.

    An object has the box and the mask of its best detection that is not cut. If all are cut, it has their unions. Its
    score is the largest of all.

    At the end, non-maximum suppression of the boxes of each class, with ``iou_threshold``, removes objects that two
    tiles see completely.

    Args:
        found: of each tile, in the image, from :func:`detections`.

    Returns:
        best scores first.
    """
    every = [one for each in found for one in each]
    if not every:
        return []
    is_cut = np.array([_is_cut(one.box, tile.box, height, width) for each, tile in zip(found, tiles) for one in each])
    numbers = _number_objects(found, tiles, is_cut, height, width)
    groups = np.split(np.argsort(numbers, kind='stable'), np.cumsum(np.bincount(numbers))[:-1])
    objects = [_unite([every[i] for i in group], [every[i] for i in group if not is_cut[i]]) for group in groups]
    boxes, labels, scores = (torch.tensor([one[part] for one in objects]) for part in range(3))
    return [objects[index] for index in batched_nms(boxes, scores, labels, iou_threshold)]


def _is_cut(box: Sequence[float], tile: Sequence[int], height: int, width: int) -> bool:
    """Whether a box ends at an edge of its tile that is not the image's."""
    sides = (tile[2] - tile[0], tile[3] - tile[1])
    return any(
        tile[edge] != border and abs(box[edge] - tile[edge]) <= EDGE * sides[edge % 2]
        for edge, border in enumerate((0, 0, width, height))
    )


def _number_objects(
    found: Sequence[list[Detection]], tiles: Sequence[Tile], is_cut: np.ndarray, height: int, width: int
) -> np.ndarray:
    """The number of the object that each detection is of, counted from 0."""
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    labels, scores = (np.array([one[part] for each in found for one in each]) for part in (1, 2))
    parts = np.split(np.arange(len(labels)), np.cumsum([len(each) for each in found])[:-1])
    joined = [np.empty((2, 0), int)]
    for a, b in _neighbours(tiles):
        first, second = parts[a][:, None], parts[b]
        iou = _ious_in_both(tiles[a], tiles[b], found[a], found[b], height, width)
        agree = (iou >= AGREEMENT) & (labels[first] == labels[second]) & (is_cut[first] | is_cut[second])
        i, j = linear_sum_assignment(agree * iou * scores[first] * scores[second], maximize=True)
        joined.append(np.stack([parts[a][i], parts[b][j]])[:, agree[i, j]])
    pairs = np.hstack(joined)
    links = coo_matrix((np.ones(pairs.shape[1]), tuple(pairs)), (len(labels), len(labels)))
    return connected_components(links, directed=False)[1]


def _neighbours(tiles: Sequence[Tile]) -> list[tuple[int, int]]:
    """The pairs of tiles of :func:`cut` that share pixels; some that only touch may be among them."""
    from scipy.spatial import cKDTree

    boxes = np.array([tile.box for tile in tiles], float)
    return sorted(cKDTree(boxes[:, :2] / (boxes[0, 2:] - boxes[0, :2])).query_pairs(1, p=np.inf))


def _ious_in_both(
    a: Tile, b: Tile, first: list[Detection], second: list[Detection], height: int, width: int
) -> np.ndarray:
    """IoU (first, second) of the parts of detections in the pixels that two tiles share."""
    x1, y1, x2, y2 = (*map(max, a.box[:2], b.box[:2]), *map(min, a.box[2:], b.box[2:]))
    if x1 >= x2 or y1 >= y2 or not first or not second:
        return np.zeros((len(first), len(second)))
    from pycocotools.mask import frPyObjects, iou, merge

    if first[0].mask:
        (inside,) = frPyObjects(np.array([[x1, y1, x2 - x1, y2 - y1]], float), height, width)
        parts = ([merge([one.mask, inside], intersect=True) for one in each] for each in (first, second))
    else:
        corners = (np.clip([one.box for one in each], (x1, y1) * 2, (x2, y2) * 2) for each in (first, second))
        parts = (np.hstack([box[:, :2], box[:, 2:] - box[:, :2]]) for box in corners)
    return iou(*parts, [0] * len(second))


def _unite(parts: list[Detection], complete: list[Detection]) -> Detection:
    """One detection from the parts of an object, and those of them that are not cut."""
    if len(parts) == 1:
        return parts[0]
    from pycocotools.mask import merge

    score = max(part.score for part in parts)
    if complete:
        return max(complete, key=lambda one: one.score)._replace(score=score)
    x1, y1, x2, y2 = zip(*(part.box for part in parts))
    mask = merge([part.mask for part in parts]) if parts[0].mask else None
    return Detection((min(x1), min(y1), max(x2), max(y2)), parts[0].label, score, mask)
