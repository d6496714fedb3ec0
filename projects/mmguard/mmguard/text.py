"""Text on images, in the font of Matplotlib's figures: all pictures that are drawn here have one font. And names in
these figures."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf')), size)


def in_figure(text: object) -> str:
    """A name as a text of a figure of Matplotlib, which takes $ for formulas, leaves out of a legend what begins with
    "_", and cannot draw bytes of a name that are not UTF-8."""
    text = str(text).replace('$', r'\$').encode('utf-8', 'backslashreplace').decode()
    return f' {text}' if text.startswith('_') else text


def text_size(text: str, size: int) -> tuple[int, int]:
    """Width and height in pixels of a line of text in a font of ``size`` pixels; every text has the same height."""
    return max(1, round(_font(size).getlength(text))), sum(_font(size).getmetrics())


def write_text(image: np.ndarray, text: str, x: int, y: int, size: int, ink: Sequence[int] = (0, 0, 0)) -> None:
    """Write a line of text on an image of uint8 (H, W, 3), from its upper left corner x, y; it ends at the edges."""
    mask = Image.new('L', text_size(text, size))
    ImageDraw.Draw(mask).text((0, 0), text, 255, _font(size))
    part = image[y:, x:][: mask.height, : mask.width]
    opacity = np.asarray(mask)[: part.shape[0], : part.shape[1], None] / 255
    part[:] = np.rint(part + opacity * (np.asarray(ink) - part.astype(float)))
