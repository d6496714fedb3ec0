"""Predictions and annotations drawn on images, see :func:`in_bgr`. Colors are uint8 (classes, 3), BGR."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from matplotlib.colors import hsv_to_rgb
from mmengine.structures import BaseDataElement
from scipy.ndimage import find_objects

from ..outputs import whole_file
from ..text import text_size, write_text
from .tiles import Detection, detections, mask_in_box

#: a JPEG image cannot have a longer side
LONGEST_JPEG = 65535
#: images with shorter sides are enlarged, so that names of classes fit in
READABLE = 480
#: how much of a pixel's color is that of its class: within a mask or a region, and in the background
OPACITY, OPACITY_OF_BACKGROUND = 0.3, 0.1


def colors_of(palette: object, classes: int) -> np.ndarray:
    """The colors of a dataset's palette, RGB, if it has one for each class; else contrasting ones.

    Each hue is as far from all before it as the golden ratio puts it. MMSegmentation gives a dataset without a palette
    random colors, which may be alike: they count as none.
    """
    if not isinstance(palette, (list, tuple)) or len(palette) != classes or _is_random(palette):
        number = np.arange(classes)
        value = 1 - 0.2 * (number // 5 % 3)  # after five hues, similar ones are darker
        palette = 255 * hsv_to_rgb(np.stack([(0.6 + 0.618034 * number) % 1, np.full(classes, 0.9), value], -1))
    return np.array(palette, np.uint8).reshape(-1, 3)[:, ::-1]


def _is_random(palette: Sequence) -> bool:
    """Whether colors are those of ``BaseSegDataset._update_palette`` of MMSegmentation."""
    return np.array_equal(palette, np.random.RandomState(42).randint(0, 255, (len(palette), 3)))


def in_bgr(image: np.ndarray) -> np.ndarray:
    """An image (H, W) or (H, W, C), as the loading transform of a config gives it, as uint8 (H, W, 3), BGR, to draw on.

    Grey becomes three equal channels; of more than three channels, the first three are shown. Of an image with values
    above 255, such as one of 16 bits, the smallest becomes black and the largest white. uint8 (H, W, 3) is not copied.
    """
    image = np.atleast_3d(image)[..., :3]
    if image.dtype != np.uint8:  # 16 bits, or the floats of to_float32=True
        low, high = (float(image.min()), float(image.max())) if image.max(initial=0) > 255 else (0.0, 255.0)
        image = (image - np.float32(low * (low < high))) * np.float32(255 / (high - low or high))
        image = image.clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(image.repeat(3, 2) if image.shape[2] == 1 else image)


def draw_sample(
    image: np.ndarray,
    sample: BaseDataElement,
    kind: str,
    names: Sequence[str],
    colors: np.ndarray,
    score_thr: float = 0.3,
) -> np.ndarray | None:
    """Annotations or predictions of a data sample of MMDetection, MMSegmentation or MMPretrain, on a copy of its image.

    Args:
        image: see :func:`in_bgr`.
        kind: "gt" or "pred", the beginning of the names of the sample's parts.
        score_thr: draw detections from this score.

    Returns:
        the drawn image, or None if the sample has none of what is drawn. Small images are enlarged by a whole number.
    """
    factor = max(1, READABLE // max(image.shape[:2]))
    image = cv2.resize(in_bgr(image), None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
    sample = sample.cpu()  # a test leaves predictions on the GPU
    instances, labels = sample.get(f'{kind}_instances'), sample.get(f'{kind}_sem_seg')
    if instances is not None and 'bboxes' in instances:
        found = detections(instances, 0, 0, *image.shape[:2], factor)
        draw_detections(image, [one for one in found if one.score is None or one.score >= score_thr], names, colors)
    elif labels is not None:
        draw_label_map(
            image, labels.data[0].numpy().astype(np.uint16).repeat(factor, 0).repeat(factor, 1), names, colors
        )
    elif kind == 'gt' and 'gt_label' in sample:
        draw_texts(image, [(names[label], 0, 0, colors[label]) for label in sample.gt_label.tolist()])
    elif kind == 'pred' and 'pred_score' in sample:
        score, label = (one.item() for one in sample.pred_score.max(0))
        draw_texts(image, [(f'{names[label]} {score:.2f}', 0, 0, colors[label])])
    else:
        return None
    return image


def beside(pictures: dict[str, np.ndarray]) -> np.ndarray:
    """Pictures of one size beside each other, each below its caption."""
    columns = []
    for caption, picture in pictures.items():
        column = np.full((picture.shape[0] + 22, picture.shape[1] + 6, 3), 255, np.uint8)
        column[22:, 3:-3] = picture
        write_text(column, caption, 4, 2, 14)
        columns.append(column)
    return np.hstack(columns)


def write_image(file: Path, image: np.ndarray) -> None:
    """Write a JPEG file, or PNG if a side is too long for JPEG."""
    suffix = '.jpg' if max(image.shape[:2]) <= LONGEST_JPEG else '.png'
    with whole_file(file.with_name(file.name + suffix)) as part:
        part.write_bytes(cv2.imencode(suffix, image)[1].tobytes())


def draw_detections(image: np.ndarray, found: Sequence[Detection], names: Sequence[str], colors: np.ndarray) -> None:
    """Draw masks with their outlines, boxes, names of classes and scores; the first detections are on top."""
    line = _line(image)
    for one in reversed(found):
        color = colors[one.label]
        if one.mask:
            x, y, inside = mask_in_box(one.mask)
            part = image[y : y + inside.shape[0], x : x + inside.shape[1]]
            part[inside] = (1 - OPACITY) * part[inside] + OPACITY * color
            part[inside & ~_eroded(inside, line)] = color
        x1, y1, x2, y2 = map(round, one.box)
        cv2.rectangle(image, (x1, y1), (x2, y2), color.tolist(), line)
    scores = ['' if one.score is None else f' {one.score:.2f}' for one in found]
    draw_texts(
        image, [(names[one.label] + score, *one.box[:2], colors[one.label]) for one, score in zip(found, scores)]
    )


def _line(image: np.ndarray) -> int:
    """The width of a line on an image, in pixels."""
    return 2 if max(image.shape) > 1000 else 1


def _eroded(mask: np.ndarray, width: int) -> np.ndarray:
    """A mask without its border of ``width`` pixels."""
    padded = np.pad(mask, width).astype(np.uint8)
    return cv2.erode(padded, None, iterations=width)[width:-width, width:-width].astype(bool)


def draw_label_map(image: np.ndarray, labels: np.ndarray, names: Sequence[str], colors: np.ndarray) -> None:
    """Color each pixel by its class, outline the classes, and leave labels without one.

    The first of two classes, or a first class with the name "background", is colored faintly and has no outline. The
    name of a class is where the class is widest.
    """
    labels = labels.astype(np.uint16)
    known = labels < len(names)
    colored = colors.take(np.where(known, labels, 0), 0)
    background = (labels == 0) & (len(names) == 2 or names[0].lower() == 'background')
    kernel = np.ones([2 * _line(image) + 1] * 2, np.uint8)
    border = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, kernel) > 0
    for where, opacity in ((background, OPACITY_OF_BACKGROUND), (known & ~background, OPACITY)):
        mixed = cv2.addWeighted(image, 1 - opacity, colored, opacity, 0)
        cv2.copyTo(mixed, where.astype(np.uint8), image)
    cv2.copyTo(colored, (border & known & ~background).astype(np.uint8), image)
    texts = []
    for label, box in enumerate(find_objects(np.where(known, labels + 1, 0))):
        if box:
            inside = np.pad((labels[box] == label).astype(np.uint8), 1)  # the class ends where the image does
            distance = cv2.distanceTransform(inside, cv2.DIST_L2, 3)[1:-1, 1:-1]
            y, x = np.unravel_index(distance.argmax(), distance.shape)
            place = x + box[1].start, y + box[0].start
            texts.append((distance.max(), (names[label], *place, colors[label])))
    draw_texts(image, [text for _, text in sorted(texts, key=lambda one: -one[0])])


def draw_texts(image: np.ndarray, texts: Iterable[tuple[str, float, float, np.ndarray]]) -> None:
    """Write texts, each with its lower left corner x, y and the color of its background.

    A text is moved so that it is in the image, and up or down if it would cover one before it.
    """
    size = round(min(18, max(11, max(image.shape) / 80)))
    taken = defaultdict(int)  # row -> bits of the columns in which a text that begins there would cover another
    for text, x, y, color in texts:
        width, line = text_size(text, size)
        last = max(0, image.shape[0] - line)
        x = int(max(0, min(x, image.shape[1] - width)))
        y = int(min(max(0, y - line), last))
        columns = (1 << width) - 1 << x
        tried = (y + step * line for number in range(last // line + 1) for step in (number, -number))
        y = next((row for row in tried if 0 <= row <= last and not taken[row] & columns), y)
        for row in range(y - line + 1, y + line):
            taken[row] |= columns
        cv2.rectangle(image, (x, y), (x + width, y + line), color.tolist(), cv2.FILLED)
        ink = (0, 0, 0) if color.sum() > 380 else (255, 255, 255)
        write_text(image, text, x, y, size, ink)
