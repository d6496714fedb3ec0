"""Checks of images and label maps, made when a dataset's pipeline loads them."""

import io
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import BinaryIO

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.fileio import get
from mmengine.logging import print_log
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import PLANAR_CONFIGURATION, SAMPLEFORMAT, ImageFileDirectory_v2

from ..errors import InputError, refusing, warn
from .config_types import type_name
from .config_values import dataset_configs

#: what OpenCV and Pillow say of a size of 0
NO_PIXELS = re.compile(r'inv_scale_x > 0|dsize\.empty|height and width must be > 0', re.IGNORECASE)
#: suffixes of image files, in lower case
IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.ppm', '.pgm', '.tif', '.tiff', '.webp')
#: names of the transforms that load an image, the second ours or MMSegmentation's -> further suffixes of the files
LOADERS = dict(LoadImageFromFile=(), LoadImageFromNpyFile=('.npy',))


@contextmanager
def large_images() -> Iterator[None]:
    """Pillow opens images of a billion pixels in this block, as OpenCV does. Before, it warns of more than 89 million,
    and refuses twice as many."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = 2**30
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def image_files(root: str, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """The image files below a folder, as paths relative to it.

    Args:
        on_error: is called with the error of each folder that cannot be read.
    """
    seen = set()
    for folder, folders, names in os.walk(root, onerror=on_error, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:  # by a link, which may lead in a circle
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith('.'))
        below = '' if folder == root else os.path.relpath(folder, root)
        for name in names:
            if name.lower().endswith(IMAGES) and not name.startswith('.'):
                yield os.path.join(below, name)


def image_suffixes(cfg: Config) -> tuple[str, ...]:
    """Suffixes of the image files that the test of a config reads, in lower case."""
    steps = (step for _, node in dataset_configs(cfg, 'test') for step in node.get('pipeline') or ())
    return IMAGES + next((LOADERS[name] for step in steps if (name := type_name(step.get('type'))) in LOADERS), ())


class CheckedPipeline(Compose):
    """A dataset's pipeline that checks images and label maps when they are loaded, by transforms within others too.

    An error of a transform that loads a file becomes an InputError with the path of the file. An error of any other
    transform is raised as it is, and the log names the image.

    Args:
        pipeline: of the dataset. Its transforms that load files are replaced.
        ignored: labels that are ignored, beside those of the classes.
    """

    def __init__(self, pipeline: Compose, dataset: BaseDataset, ignored: Sequence[int] = (255,)) -> None:
        self.transforms = pipeline.transforms
        check = None
        if hasattr(dataset, 'label_map'):  # Only label maps of MMSegmentation have a number per class.
            check = partial(_check_labels, num_classes=len(dataset.metainfo['classes']), ignored=ignored)
        _check_loading(self.transforms, check, boxes=not getattr(dataset, 'test_mode', False))

    def __call__(self, data: dict) -> dict | None:
        for transform in self.transforms:
            path = data.get('img_path')
            try:
                data = transform(data)
            except InputError:
                raise
            except Exception as error:
                height, width = getattr(data.get('img'), 'shape', (1, 1))[:2]
                if max(height, width) > 32 * min(height, width) and NO_PIXELS.search(str(error)):
                    raise InputError(
                        f'{path} is {width} x {height} pixels, and {type(transform).__name__} makes its shorter side '
                        'less than a pixel: leave the image out, or cut it into parts'
                    ) from error
                print_log(f'{type(transform).__name__} failed on {path}', logger='current', level=logging.ERROR)
                raise
            if data is None:
                return None
        return data


def _check_loading(transforms: list, check: Callable | None, boxes: bool) -> None:
    """Replace the transforms of a list that load files, and those within its transforms, by those that check them."""
    from mmcv.transforms import LoadAnnotations, LoadImageFromFile

    for index, transform in enumerate(transforms):
        if isinstance(transform, LoadImageFromFile):
            transforms[index] = partial(load_image, transform)
        elif isinstance(transform, LoadAnnotations):
            transforms[index] = partial(_load_annotations, transform, check, boxes)
        for name in ('transforms', 'subroutines'):  # the second are TestTimeAug's
            inner = getattr(transform, name, None)
            inner = getattr(inner, 'transforms', inner)
            if isinstance(inner, list):
                _check_loading(inner, check, boxes)


@large_images()
def load_image(transform: Callable, data: dict) -> dict | None:
    """Call a transform that loads an image; an InputError names a file that cannot be used."""
    path, backend = data.get('img_path'), getattr(transform, 'imdecode_backend', None)
    if backend == 'tifffile' and find_spec(backend) is None:
        raise InputError(f"{path} cannot be used: imdecode_backend='tifffile' needs the package: pip install tifffile")
    if path and os.path.isfile(path) and not os.path.getsize(path):
        raise InputError(f'{path} cannot be used: the file is empty')
    with refusing(f'{path} cannot be used'):
        try:
            data = transform(data)
        except AssertionError as error:  # of MMCV, where OpenCV gives no image
            if 'failed to load image' not in str(error):
                raise
            raise InputError(f'{path} cannot be used: it is no image, or a damaged one') from error
    if data is not None and path and os.path.isfile(path):
        check_image(path)
        header = _header(path)
        if getattr(transform, 'color_type', None) != 'unchanged' and backend != 'tifffile':  # These keep all values.
            with open(path, 'rb') as file:
                values = _odd_values(file)
            if values:
                raise InputError(f'{path} has {values}, which would be read as other colours: write it with uint8')
            if ';16' in header[2]:
                _check_range(path, data['img'])
        if backend == 'tifffile':
            _check_order(path, data['img'])
        check_size(path, data, backend, header)
    return data


@large_images()
def _load_annotations(transform: Callable, check: Callable | None, boxes: bool, data: dict) -> dict:
    path = data.get('seg_map_path')
    checked = check is not None and path is not None
    # A subclass of the user may read other files, or change the labels.
    read_by = getattr(type(transform)._load_seg_map, '__module__', '')
    if checked and read_by.partition('.')[0] in ('mmcv', 'mmdet', 'mmseg'):
        with refusing(f'{path} cannot be used'):
            content = get(path, backend_args=transform.backend_args)
        check_label_map(path, content, transform.imdecode_backend)
    with refusing(f'{path or data.get("img_path")} cannot be used'):
        data = transform(data)
    if checked:
        check(data)
    if boxes and 'gt_bboxes' in data:
        _check_boxes(data)
    return data


def _check_boxes(data: dict) -> None:
    """Raise an InputError for a box without area, which makes the loss of a detector infinite. Those of COCO files are
    left out before."""
    boxes = np.asarray(getattr(data['gt_bboxes'], 'tensor', data['gt_bboxes']))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        return  # rotated
    empty = ~(boxes[:, 2:] > boxes[:, :2]).all(1)
    if 'gt_ignore_flags' in data:
        empty &= ~data['gt_ignore_flags']
    if empty.any():
        raise InputError(
            f'an annotation of {data.get("img_path")} has a box without area, {boxes[empty][0].tolist()}: mend it, or '
            'set filter_cfg=dict(bbox_min_size=1) in the dataset for training'
        )


@large_images()
def check_label_map(path: str, content: bytes, backend: str) -> None:
    """Check that a label map is read as it was written: MMSegmentation casts its labels to 8 bits.

    Args:
        path, content: of the file.
        backend: what decodes it, ``imdecode_backend`` of the transform.

    Raises:
        InputError: if a label is not a whole number from 0 to 255, or if the format of the file changes labels.
    """
    mode, form, coding, orientation = _header(io.BytesIO(content))
    if form in ('JPEG', 'MPO'):
        raise InputError(f'{path} is a JPEG file, which does not keep the labels: use PNG')
    if form == 'GIF':
        raise InputError(f'{path} is a GIF file, which may number the labels anew in its palette: use PNG')
    if 'L;2' in coding or 'L;4' in coding or mode == '1' and backend != 'pillow':
        raise InputError(f'{path} has fewer than 8 bits per pixel, which are read as shades of grey: write it with 8')
    if orientation > 1:
        raise InputError(f'{path} has EXIF orientation {orientation}, ignored in label maps: turn its pixels instead')
    values = _odd_values(io.BytesIO(content)) if mode == 'L' or form == 'PPM' else ''
    if values:
        raise InputError(f'{path} has {values}, which would be read as other labels: write it as a PNG of uint8')
    if mode is None or mode[0] in 'IF':
        from mmcv import imfrombytes

        with refusing(f'{path} cannot be used'):
            labels = imfrombytes(content, flag='unchanged', backend=backend)
        with np.errstate(invalid='ignore'):
            wrong = () if labels is None else labels[labels != labels.astype(np.uint8)]
        if len(wrong):
            raise InputError(f'{path} has label {wrong[0]}, but labels are whole numbers from 0 to 254, 255 is ignored')


def _check_labels(data: dict, num_classes: int, ignored: Sequence[int]) -> None:
    labels, path = data['gt_seg_map'], data['seg_map_path']
    if labels.ndim < 2 and 1 in data['ori_shape'] and labels.size == max(data['ori_shape']):
        # MMSegmentation has squeezed a map of one row or column, or of one pixel.
        labels = data['gt_seg_map'] = labels.reshape(data['ori_shape'])
    if labels.shape != tuple(data['ori_shape']):
        *_, orientation = _header(data['img_path'])
        turned = f', as it is read (its EXIF orientation is {orientation})' if orientation > 1 else ''
        raise InputError(
            f'{path} is {" x ".join(map(str, labels.shape))} and its image '
            f'{" x ".join(map(str, data["ori_shape"]))}{turned}: a label map has a number per pixel'
            + ', and tools/convert_data.py masks makes them of colours'
            * (labels.ndim > 2)
        )
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    wrong = wrong[~np.isin(wrong, ignored)]
    if len(wrong):
        raise InputError(f'{path} has {unknown_label(wrong[0], num_classes, ignored)}')


def unknown_label(label: int, num_classes: int, ignored: Sequence[int]) -> str:
    """What is said of a label that is neither a class nor ignored, as the end of a sentence."""
    return (
        f'label {label} where the dataset has {num_classes} classes, counted from 0 (after reduce_zero_label), and '
        f'{" and ".join(map(str, ignored))} for what is ignored: add the class to metainfo.classes, or to ignore its '
        f'pixels, set ignore_index={label} of the heads and metrics and seg_pad_val={label} of model.data_preprocessor'
    )


def _check_range(path: str, image: np.ndarray) -> None:
    """Name an image of 16 bits that is nearly black in 8, since its values have 14 bits or fewer; one of a folder."""
    folder, largest = os.path.dirname(path), image.max(initial=0)
    if largest < 64 and ('dark', folder) not in _folders_in_log:
        from mmcv import imread

        _folders_in_log.add(('dark', folder))
        warn(
            f'{path} has 16 bits per channel, but values up to {imread(path, "unchanged").max()} only, so it is nearly '
            f"black as it is read, at most {largest:.0f} of 255: set color_type='unchanged', to_float32=True of "
            'LoadImageFromFile in all pipelines, and mean and std of the values, see docs/own_data.md'
        )


def _check_order(path: str, image: np.ndarray) -> None:
    """Raise an InputError if a TIFF file has its bands one after the other, which tifffile reads as (C, H, W)."""
    with open(path, 'rb') as file:
        planes = _tiff_tags(file).get(PLANAR_CONFIGURATION) == 2
    if planes and image.ndim == 3:
        raise InputError(
            f'{path} is read as {" x ".join(map(str, image.shape))}, with its bands before height and width: write it '
            "anew, as tifffile.imwrite(path, image.transpose(1, 2, 0), planarconfig='contig') does"
        )


def check_size(path: str, data: dict, backend: str | None, header: tuple) -> None:
    """Compare the size of an image with the one that its annotations give.

    Images are used as they are displayed, turned by their EXIF orientation, and annotations are of the turned image.
    If a turned image keeps its size, the comparison says nothing. Then the log names one image of the folder.

    Args:
        data: with "ori_shape" of the image as it was read, and "height" and "width" where the annotations give them.
        backend: what has decoded it, ``imdecode_backend`` of the transform.
        header: see :func:`_header`.

    Raises:
        InputError: if the sizes differ, or if the image has more than 8 bits, which Pillow would cut off.
    """
    mode, *_, orientation = header
    if backend == 'pillow' and mode and mode[0] in 'IF':
        raise InputError(f"{path} has more than 8 bits per channel: read it with imdecode_backend='cv2'")
    (height, width), given = data['ori_shape'], (data.get('height'), data.get('width'))
    if all(given) and given != (height, width):
        raise InputError(
            f'{path} is {width} x {height} pixels as it is read, but {given[1]} x {given[0]} in its annotations: '
            + (
                f'its EXIF orientation is {orientation}, so they must be of the image as it is displayed, or for '
                "color_type='color_ignore_orientation' of LoadImageFromFile as it is stored"
                if orientation > 4 and given == (width, height)
                else 'correct the width and height that they give, or the file name'
            )
        )
    folder = os.path.dirname(path)
    located = any(given) or 'seg_map_path' in data  # has boxes or a label map, and not only a class
    same = 1 < orientation < 5 or orientation > 4 and width == height
    if located and same and ('turned', folder) not in _folders_in_log:
        _folders_in_log.add(('turned', folder))
        warn(
            f'{path} has EXIF orientation {orientation}, which does not change its size: annotations in {folder} must '
            "be of the images as they are displayed, or as they are stored for color_type='color_ignore_orientation'"
        )


#: what has been said of which folder
_folders_in_log: set[tuple[str, str]] = set()


@large_images()
def _header(file: str | io.BytesIO) -> tuple[str | None, str | None, str, int]:
    """What Pillow reads in the first bytes of an image file: mode, format, coding and EXIF orientation, 1 to 8."""
    try:
        with Image.open(file) as image:
            return image.mode, image.format, str(image.tile), orientation_of(image)
    except Exception:  # Pillow raises several kinds. It does not read all formats, and not all that cameras write.
        return None, None, '', 1


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an image that Pillow has opened, 1 to 8; more than 4 exchange width and height."""
    # Pillow would read a whole PNG file to find EXIF data at its end.
    exif = image.getexif() if image.format != 'PNG' or 'exif' in image.info else {}
    orientation = exif.get(ExifTags.Base.Orientation)
    return orientation if orientation in range(1, 9) else 1


def _odd_values(file: BinaryIO) -> str:
    """What the values of an image are, if OpenCV or Pillow do not read them as numbers from 0 to 255 or 65535, the
    largest being white; otherwise ''."""
    if set(_tiff_tags(file).get(SAMPLEFORMAT, ())) & {2, 3}:
        return 'signed values or floats'
    file.seek(0)
    start = file.read(1024)
    if start[:2] in (b'Pf', b'PF'):
        return 'floats'
    gap = rb'(?:\s|#[^\n]*\n)+'  # A comment may be anywhere in the header of a PGM or PPM file.
    largest = re.match(rb'P[56]' + gap + rb'\d+' + gap + rb'\d+' + gap + rb'(\d+)\s', start)
    if largest and int(largest[1]) not in (255, 65535):
        return f'values from 0 to {int(largest[1])}'
    return ''


def _tiff_tags(file: BinaryIO) -> Mapping[int, object]:
    """How the first page of a TIFF file stores its bands; {} of others, and where Pillow cannot parse it."""
    start = file.read(16)
    if start[:4] in (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+'):  # The last two are BigTIFF.
        with suppress(Exception):  # Pillow raises several kinds. What it cannot parse, the loading transform refuses.
            tags = ImageFileDirectory_v2(start if b'+' in start[:4] else start[:8])
            file.seek(tags.next)
            tags.load(file)
            return {tag: tags[tag] for tag in (PLANAR_CONFIGURATION, SAMPLEFORMAT) if tag in tags}
    return {}


def check_image(path: str) -> None:
    """Raise an InputError if a JPEG or PNG file was cut short. OpenCV up to 4.10 reads it, and makes the rest grey."""
    with open(path, 'rb') as file:
        start = file.read(2)
        file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
        end = file.read()
    if start == b'\xff\xd8' and not end.endswith(b'\xff\xd9') or start == b'\x89P' and b'IEND' not in end:
        cut = refusing(f'{path} cannot be used: the image is cut short', (OSError, SyntaxError))
        with cut, Image.open(path) as image:
            image.load()  # Other bytes may follow a complete image.
