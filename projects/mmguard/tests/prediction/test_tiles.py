"""Tiles, and predictions joined over their seams, of objects whose place is known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import InstanceData
from pycocotools import mask as coco

from mmguard.prediction.predict import MODELS
from mmguard.prediction.tiles import Detection, cut, detections, join_detections, join_maps, mask_in_box

HEIGHT, WIDTH, TILE, OVERLAP = 170, 230, 100, 20  # tiles begin at x 0, 80, 130 and y 0, 70


@pytest.mark.parametrize('height, width, tile, overlap', [(170, 230, 100, 20), (60, 40, 100, 20), (200, 200, 100, 0)])
def test_cut(height, width, tile, overlap):
    """Tiles have one size, lie in the image and share the overlap. Each pixel is taken from the tile with the farthest
    edge."""
    tiles = cut(height, width, tile, overlap)
    distance = np.full((len(tiles), height, width), -1)
    owner = np.full((height, width), -1)
    for number, ((x1, y1, x2, y2), (left, top, right, bottom)) in enumerate(tiles):
        assert (x2 - x1, y2 - y1) == (min(tile, width), min(tile, height))
        assert (owner[top:bottom, left:right] == -1).all()
        owner[top:bottom, left:right] = number
        y, x = np.mgrid[y1:y2, x1:x2]
        to_edges = [(x1 > 0, x - x1), (y1 > 0, y - y1), (x2 < width, x2 - 1 - x), (y2 < height, y2 - 1 - y)]
        inner = [pixels for is_inner, pixels in to_edges if is_inner]
        distance[number, y1:y2, x1:x2] = np.minimum.reduce(inner) if inner else 0
    taken = np.take_along_axis(distance, owner[None], 0)[0]
    assert (owner >= 0).all() and (taken >= distance.max(0) - 1).all()  # one pixel: an even overlap has no middle
    columns = sorted({box[::2] for box, _ in tiles})
    assert all(end - start >= overlap for (_, end), (start, _) in zip(columns, columns[1:]))


def test_join_maps():
    """A label map cut into tiles and joined is itself, also where the edges of tiles are wrong."""
    labels = np.random.default_rng(0).integers(0, 150, (HEIGHT, WIDTH), np.uint8)
    tiles = cut(HEIGHT, WIDTH, TILE, OVERLAP)
    maps = []
    for (x1, y1, x2, y2), _ in tiles:
        part = labels[y1:y2, x1:x2].copy()
        for at_border, edge in (
            (y1 == 0, np.s_[:5]),
            (y2 == HEIGHT, np.s_[-5:]),
            (x1 == 0, np.s_[:, :5]),
            (x2 == WIDTH, np.s_[:, -5:]),
        ):
            if not at_border:
                part[edge] = 255
        maps.append(part)
    joined = join_maps(iter(maps), tiles, HEIGHT, WIDTH)
    assert joined.dtype == np.uint8 and (joined == labels).all()


@pytest.mark.parametrize('x, y, rows', [(0, 0, 20), (30, 40, 20), (7, 0, 60)])
def test_masks(x, y, rows):
    """Masks of a tile become COCO's codes of masks of the image, as pycocotools encodes these, and come back from them;
    empty ones too."""
    masks = torch.rand(3, rows, 30) > torch.tensor([0.5, -1, 1])[:, None, None]
    found = detections(
        InstanceData(bboxes=torch.zeros(3, 4), labels=torch.zeros(3), scores=torch.ones(3), masks=masks), x, y, 60, 60
    )
    for mask, one in zip(masks.numpy(), found):
        whole = np.zeros((60, 60), np.uint8, order='F')
        whole[y : y + rows, x : x + 30] = mask
        assert one.mask == coco.encode(whole)
        left, top, inside = mask_in_box(one.mask)
        drawn = np.zeros((60, 60), np.uint8)
        drawn[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
        assert (drawn == whole).all()


def see(objects, tiles, with_masks):
    """What a faultless detector finds in each tile of an image with ellipses (label, score, x1, y1, x2, y2)."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    found = []
    for (left, top, right, bottom), _ in tiles:
        boxes, labels, scores, masks = [], [], [], []
        for label, score, x1, y1, x2, y2 in objects:
            ellipse = ((2 * x - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y - y1 - y2) / (y2 - y1)) ** 2 <= 1
            mask = ellipse[top:bottom, left:right]
            if mask.any():
                rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
                boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
                labels.append(label)
                scores.append(score - 0.1 * (mask.sum() < ellipse.sum()))  # less for a part
                masks.append(mask)
        instances = InstanceData(
            bboxes=torch.tensor(boxes, dtype=torch.float).reshape(-1, 4),
            labels=torch.tensor(labels, dtype=torch.long),
            scores=torch.tensor(scores),
        )
        if with_masks:
            instances.masks = torch.tensor(np.array(masks)).reshape(-1, bottom - top, right - left)
        found.append(detections(instances, left, top, HEIGHT, WIDTH))
    return found


OBJECTS = {
    'whole in one tile': [(1, 0.9, 10, 10, 60, 60)],
    'cut by two tiles': [(1, 0.9, 30, 10, 150, 60)],
    'on the corner of four': [(1, 0.9, 40, 40, 130, 130)],
    'whole in a tile and cut in others': [(1, 0.9, 60, 20, 96, 60)],
    'smaller than the overlap, cut in none': [(1, 0.9, 84, 30, 94, 40)],
    'neighbours across a seam': [(1, 0.9, 50, 10, 92, 60), (1, 0.8, 93, 10, 150, 60)],
    'neighbours side by side, both cut': [(1, 0.9, 30, 10, 150, 38), (1, 0.8, 30, 40, 150, 68)],
    'two classes at one place': [(1, 0.9, 30, 10, 150, 60), (2, 0.8, 30, 10, 150, 60)],
    'none': [],
}


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('objects', OBJECTS.values(), ids=OBJECTS)
def test_join_detections(objects, with_masks):
    """Each object is found once, with box, class and mask of the whole image."""
    tiles = cut(HEIGHT, WIDTH, TILE, OVERLAP)
    joined = join_detections(see(objects, tiles, with_masks), tiles, HEIGHT, WIDTH)
    (whole,) = see(objects, cut(HEIGHT, WIDTH, WIDTH, 0), with_masks)
    assert [one._replace(score=0) for one in joined] == [one._replace(score=0) for one in whole]


def test_the_best_of_several_joins():
    """A weak detection that agrees as well does not take the place of the right one, and no detection joins twice."""
    tiles = cut(HEIGHT, WIDTH, TILE, OVERLAP)
    found = see([(1, 0.9, 30, 10, 150, 60)], tiles, False)
    weak = found[1][0]._replace(score=0.06)
    found[1].insert(0, weak._replace(box=(*weak.box[:2], 129.0, weak.box[3])))
    joined = join_detections(found, tiles, HEIGHT, WIDTH)
    assert [(one.box, one.score) for one in joined] == [
        ((30, 10, 150, 60), pytest.approx(0.8)),
        (found[1][0].box, 0.06),
    ]


def test_score_of_the_best_part():
    """An object has the best score of its parts, and the box and mask of the tile that has it whole."""
    tiles = cut(HEIGHT, WIDTH, TILE, OVERLAP)
    found = see(OBJECTS['whole in a tile and cut in others'], tiles, True)
    x1, y1, x2, y2 = found[1][0].box
    found[1][0] = found[1][0]._replace(score=0.95, box=(x1, y1, x2 + 2, y2 + 2))
    assert join_detections(found, tiles, HEIGHT, WIDTH) == [found[0][0]._replace(score=0.95)]


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize(
    'objects',
    [
        OBJECTS['neighbours side by side, both cut'],
        OBJECTS['two classes at one place'],
        [(1, 0.9, 30, 10, 150, 50), (1, 0.8, 30, 35, 150, 75)],  # overlap a little
        [(1, 0.9, 50, 0, 95, 30), (1, 0.8, 84, 0, 130, 30)],  # cut by none of the two tiles, alike in what they share
    ],
)
def test_two_objects_stay_two(objects, with_masks):
    """If each of two tiles has missed one of two objects, those that they found are not joined."""
    tiles = cut(HEIGHT, WIDTH, TILE, OVERLAP)
    found = see(objects, tiles, with_masks)
    del found[0][1], found[1][0]
    assert len(join_detections(found[:2], tiles[:2], HEIGHT, WIDTH)) == 2


@pytest.mark.parametrize('part', [lambda nms: dict(nms=nms), lambda nms: dict(rcnn=dict(nms=nms))])
@pytest.mark.parametrize('threshold, number', [(0.8, 2), (0.7, 1)])
def test_overlapping_objects(part, threshold, number):
    """They are one from the threshold on that the detector's own NMS has, of one stage or of two."""
    both = [Detection((10.0, 10, 50, bottom), 1, bottom / 100) for bottom in (50, 40)]
    model = SimpleNamespace(cfg=Config(dict(model=dict(test_cfg=part(dict(iou_threshold=threshold))))))
    assert len(MODELS['mmdet'].join(model, [both], cut(100, 100, 100, 0), 100, 100)) == number


def test_no_overlap_joins_nothing():
    tiles = cut(100, 200, 100, 0)
    parts = see([(1, 0.9, 60, 20, 140, 80)], tiles, False)
    assert len(join_detections(parts, tiles, 100, 200)) == 2
