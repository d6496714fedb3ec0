"""Predictions drawn on images of uint8 (H, W, 3), BGR. Colors are an array (classes, 3) of uint8, BGR."""

from collections.abc import Sequence

import cv2
import numpy as np

from .tiles import Detection


def draw_detections(image: np.ndarray, found: Sequence[Detection], names: Sequence[str], colors: np.ndarray) -> None:
    """Draw masks, boxes, names of classes and scores; the first detections are on top."""
    from pycocotools.mask import decode, toBbox

    for one in reversed(found):
        color = colors[one.label]
        if one.mask:
            x, y, width, height = map(int, toBbox(one.mask))
            box = slice(y, y + height), slice(x, x + width)
            inside = decode(one.mask)[box].astype(bool)
            image[box][inside] = 0.5 * image[box][inside] + 0.5 * color
        x1, y1, x2, y2 = map(round, one.box)
        cv2.rectangle(image, (x1, y1), (x2, y2), color.tolist(), 2 if max(image.shape) > 1000 else 1)
    for one in reversed(found):
        draw_text(image, f'{names[one.label]} {one.score:.2f}', *one.box[:2], colors[one.label])


def draw_label_map(image: np.ndarray, labels: np.ndarray, names: Sequence[str], colors: np.ndarray) -> None:
    """Color each pixel by its class. The name of a class is where the class is widest."""
    cv2.addWeighted(image, 0.4, colors[labels], 0.6, 0, dst=image)
    for label in np.unique(labels).tolist():
        distance = cv2.distanceTransform((labels == label).astype(np.uint8), cv2.DIST_L2, 3)
        y, x = np.unravel_index(distance.argmax(), distance.shape)
        draw_text(image, names[label], x, y, colors[label])


def draw_text(image: np.ndarray, text: str, x: float, y: float, color: np.ndarray) -> None:
    """Write on a background of a color; x, y is its lower left corner, moved so that the text is in the image."""
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, min(0.6, max(0.35, max(image.shape) / 2500))
    (width, height), base = cv2.getTextSize(text, font, scale, 1)
    x = int(max(0, min(x, image.shape[1] - width)))
    y = int(max(0, min(y, image.shape[0]) - height - base))
    cv2.rectangle(image, (x, y), (x + width, y + height + base), color.tolist(), cv2.FILLED)
    ink = (0, 0, 0) if color.sum() > 380 else (255, 255, 255)
    cv2.putText(image, text, (x, y + height), font, scale, ink, 1, cv2.LINE_AA)
