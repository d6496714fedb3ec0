"""Overlaps of boxes (x1, y1, x2, y2), and non-maximum suppression."""

import numpy as np
import torch
import torchvision  # noqa: F401, registers its operators
from torch import Tensor

from .dtypes import wide

#: columns of a lane in CLRNet: two scores, start and length of the lane among the rows, which start at OFFSETS
START, LENGTH, OFFSETS, ROWS = 2, 4, 5, 72


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices (int64) of the boxes that NMS keeps, best first.

    Args:
        boxes: (N, 4).
        scores: (N,).
        iou_threshold: a box with a larger overlap with a better one is removed.
        offset: 0 or 1, added to widths and heights.
    """
    boxes = wide(boxes)
    if offset:
        boxes = torch.cat([boxes[:, :2], boxes[:, 2:] + offset], 1)
    # MMCV compares in float32, torchvision in float64: an overlap of 0.6 in float32 is above 0.6 in float64.
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), float(np.float32(iou_threshold)))


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Return the indices (int64) of the boxes that soft-NMS keeps, best first, and write the boxes and their new scores
    to the first rows of ``dets``.

    The source is Bodla et al., "Soft-NMS: Improving Object Detection With One Line of Code". Of equal scores, the same
    one comes first as in MMCV: boxes change their places as there.

    Args:
        boxes: (N, 4), on the CPU.
        scores: (N,).
        dets: (N, 5).
        iou_threshold: of the methods 0 and 1.
        sigma: of method 2.
        min_score: a box is removed when its score is below, except for the first.
        method: 0 sets the scores of overlapping boxes to 0, 1 multiplies them by 1 - IoU, 2 by exp(-IoU^2 / sigma).
        offset: 0 or 1, added to widths and heights.
    """
    rest = np.concatenate([boxes.detach().float().numpy().T, scores.detach().float().numpy()[None]])
    places = np.arange(rest.shape[1])
    kept, indices = np.empty((5, len(places)), np.float32), np.empty(len(places), np.int64)
    count = 0
    while len(places):
        best = rest[4].argmax()
        kept[:, count], indices[count] = rest[:, best], places[best]
        count += 1
        rest[:, best], places[best] = rest[:, 0], places[0]
        rest, places = rest[:, 1:], places[1:]
        overlap = _overlaps(kept[:4, count - 1 : count], rest, offset)
        if method == 2:
            rest[4] *= np.exp(-np.square(overlap) / np.float32(sigma))
        else:
            high = overlap >= np.float32(iou_threshold)
            rest[4] *= np.where(high, 1 - overlap if method else np.float32(0), np.float32(1))
        low = rest[4] < np.float32(min_score)
        if low.any():
            order = _without(low)
            rest, places = np.ascontiguousarray(rest[:, order]), places[order]
    dets[:count] = torch.from_numpy(kept[:, :count].T).to(dets)
    return torch.from_numpy(indices[:count])


def _without(removed: np.ndarray) -> np.ndarray:
    """Return the places that stay, after the last ones have moved to the places of those that are removed."""
    places = np.arange(len(removed) - removed.sum())
    holes = places[removed[: len(places)]]
    places[holes] = len(places) + np.flatnonzero(~removed[len(places) :])[::-1]
    return places


def _overlaps(one: np.ndarray, many: np.ndarray, offset: int) -> np.ndarray:
    """Return the IoU of boxes with coordinates in the first axis; that of two boxes without an area is 0."""
    width = np.minimum(one[2], many[2]) - np.maximum(one[0], many[0]) + offset
    height = np.minimum(one[3], many[3]) - np.maximum(one[1], many[1]) + offset
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    first, second = ((x2 - x1 + offset) * (y2 - y1 + offset) for x1, y1, x2, y2 in (one[:4], many[:4]))
    union = first + second - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union != 0)


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Return a list for each box that NMS keeps: its index and those of the boxes that it removes, best first.

    Args:
        dets: boxes and scores, (N, 5), on the CPU.
        iou_threshold: a box with such an overlap or a larger one is removed.
    """
    dets = wide(dets.detach())
    boxes = dets[:, :4].numpy().T
    rest = dets[:, 4].sort(descending=True, stable=True).indices.numpy()
    groups = []
    while len(rest):
        best, others = rest[:1], rest[1:]
        matched = _overlaps(boxes[:, best], boxes[:, others], 0) >= np.float32(iou_threshold)
        groups.append([*best.tolist(), *others[matched].tolist()])
        rest = others[~matched]
    return groups


def bbox_overlaps(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int) -> None:
    """Write the overlaps to ``ious``.

    Args:
        bboxes1: (N, 4).
        bboxes2: (M, 4).
        ious: (N, M), or (N,) if aligned.
        mode: 0 divides by the union, 1 by the area of the first box.
        aligned: compare the boxes of a row only.
        offset: 0 or 1, added to widths and heights.
    """
    one, many = wide(bboxes1), wide(bboxes2)
    one = one if aligned else one[:, None]
    low, high = torch.maximum(one[..., :2], many[..., :2]), torch.minimum(one[..., 2:], many[..., 2:])
    shared = (high - low + offset).clamp(min=0).prod(-1)
    area = (one[..., 2:] - one[..., :2] + offset).prod(-1)
    if mode == 0:
        area = area + (many[..., 2:] - many[..., :2] + offset).prod(-1) - shared
    ious.copy_(shared / area)


def line_nms_forward(boxes: Tensor, scores: Tensor, thresh: float, top_k: int) -> list[Tensor]:
    """NMS of lanes, as in Zheng et al., "CLRNet: Cross Layer Refinement Network for Lane Detection".

    A lane is removed if its mean horizontal distance to a better one is below ``thresh``, in the rows that both have.

    Args:
        boxes: lanes, (N, 77): two scores, start (0 to 1), angle, length (rows), horizontal position in each of 72 rows.
        scores: (N,).
        top_k: the largest number of lanes.

    Returns:
        The indices of the lanes that are kept (N,), best first and followed by zeros, their number, and for each lane
        1 + the place of the lane that stands for it, or 0 (N,). All are int64.
    """
    order = scores.sort(descending=True, stable=True).indices
    lanes = wide(boxes)[order].cpu()
    start = (lanes[:, START] * (ROWS - 1) + 0.5).int()
    end = start + lanes[:, LENGTH].int() - 1
    rows = torch.arange(ROWS)
    removed = torch.zeros(len(lanes), dtype=torch.bool)
    keep, parent = torch.zeros(len(lanes), dtype=torch.int64), torch.zeros(len(lanes), dtype=torch.int64)
    count = 0
    for i in range(len(lanes)):
        if removed[i]:
            continue
        first, last = torch.maximum(start[i:], start[i]), torch.minimum(end[i:], end[i]).clamp(max=ROWS - 1)
        shared = (rows >= first[:, None]) & (rows <= last[:, None])
        distance = ((lanes[i:, OFFSETS:] - lanes[i, OFFSETS:]).abs() * shared).sum(1)
        close = (distance < thresh * (last - first + 1)) & (first >= 0) & (last >= first)
        close[0] = True
        removed[i:] |= close
        keep[count], count = i, count + 1
        parent[i:][close] = count
        if count == top_k:
            break
    keep[:count] = order.cpu()[keep[:count]]
    parents = torch.empty_like(parent)
    parents[order.cpu()] = parent
    return [keep.to(boxes.device), torch.tensor(count, device=boxes.device), parents.to(boxes.device)]
