"""Images and label maps are checked when they are loaded."""

import io
import zlib

import cv2
import numpy as np
import pytest
from mmcv import transforms
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations as LoadBoxes
from mmengine.dataset import BaseDataset, Compose
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from mmguard.checks import images
from mmguard.checks.images import CheckedPipeline, check_image, check_label_map
from mmguard.errors import InputError


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_images_cut_short(tmp_path, suffix):
    """OpenCV up to 4.10 makes the rest grey. Bytes after a complete image do no harm."""
    path = tmp_path / f'a.{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    for contents in (whole, whole + b'more' * 100):
        path.write_bytes(contents)
        check_image(str(path))
    for share in (0.3, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError, match=f'a.{suffix} cannot be used: the image is cut short'):
            check_image(str(path))


class Images(BaseDataset):
    def load_data_list(self):
        return [dict(img_path='a.jpg')]


def pipeline(*transforms):
    dataset = Images(serialize_data=False, metainfo=dict(classes=('a',)))
    return CheckedPipeline(Compose(transforms), dataset)


def test_files_that_cannot_be_loaded_are_named(tmp_path):
    """An image that cannot be read is a mistake in the data."""
    with pytest.raises(InputError, match='b.jpg cannot be used: FileNotFoundError'):
        pipeline(LoadImageFromFile())(dict(img_path=str(tmp_path / 'b.jpg')))


def turned(folder, orientation, size=(20, 10), suffix='jpg'):
    """An image of a size as it is stored, with an EXIF orientation."""
    path, exif = folder / f'a.{suffix}', Image.Exif()
    exif[0x0112] = orientation
    Image.new('RGB', size).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize(
    'orientation, colour, height, width, message',
    [
        (1, 'color', 10, 20, None),
        (1, 'color', 10, 21, '20 x 10 pixels as it is read, but 21 x 10 in its annotations: correct the width'),
        (1, 'color', 20, 10, '20 x 10 pixels as it is read, but 10 x 20 in its annotations: correct the width'),
        (6, 'color', 20, 10, None),
        (6, 'color', 10, 20, '10 x 20 pixels as it is read, but 20 x 10 .* its EXIF orientation is 6, so they must'),
        (6, 'color_ignore_orientation', 10, 20, None),
        (6, 'color_ignore_orientation', 20, 10, 'its EXIF orientation is 6, so they must be of the image as it is di'),
        (3, 'color', 10, 20, None),
        (99, 'color', 10, 20, None),
    ],
)
def test_sizes_of_images(tmp_path, suffix, backend, orientation, colour, height, width, message):
    """Images are turned by their EXIF orientation. Boxes and masks for another size would not be at their objects."""
    data = dict(img_path=turned(tmp_path, orientation, suffix=suffix), height=height, width=width)
    load = pipeline(LoadImageFromFile(color_type=colour, imdecode_backend=backend))
    if message is None:
        assert load(data)['img'].shape == (height, width, 3)
    else:
        with pytest.raises(InputError, match=message):
            load(data)


@pytest.mark.parametrize('orientation, size, lines', [(3, (20, 10), 1), (6, (9, 9), 1), (99, (9, 9), 0)])
def test_turns_that_keep_the_size(tmp_path, log, orientation, size, lines):
    """Nobody can see whether annotations are of the turned image. The log names one image of a folder."""
    load = pipeline(LoadImageFromFile())
    folder = tmp_path / str(orientation)  # pytest uses a path again after it has removed it
    folder.mkdir()
    for _ in range(2):
        load(dict(img_path=turned(folder, orientation, size), height=size[1], width=size[0]))
    assert len(log) == lines
    assert all(f'a.jpg has EXIF orientation {orientation}, which does not change its size' in line for line in log)


def test_deep_images(tmp_path):
    """OpenCV scales 16 bits to 8. Pillow cuts them off."""
    path = str(tmp_path / 'a.png')
    Image.fromarray(np.full((10, 20), 256 * 77, np.uint16)).save(path)
    assert (pipeline(LoadImageFromFile())(dict(img_path=path))['img'] == 77).all()
    with pytest.raises(InputError, match="a.png has more than 8 bits per channel: read it with imdecode_backend='cv2'"):
        pipeline(LoadImageFromFile(imdecode_backend='pillow'))(dict(img_path=path))


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
    'bits, settings, named', [(10, {}, 1), (14, {}, 1), (16, {}, 0), (12, dict(color_type='unchanged'), 0)]
)
def test_few_bits_in_deep_images(tmp_path, log, bits, settings, named, channels):
    """Values of 10 to 14 bits in 16 are nearly black in 8: the log says so once per folder, with the largest value and
    the setting. With it, the values are kept."""
    folder = tmp_path / f'{bits}_{len(settings)}_{channels}'  # pytest uses a path again
    folder.mkdir()
    image = np.linspace(0, 2**bits - 1, 200).astype(np.uint16).reshape(10, 20, 1).repeat(channels, 2)
    load = pipeline(LoadImageFromFile(**settings))
    for name in 'ab':
        cv2.imwrite(str(folder / f'{name}.png'), image)
        found = load(dict(img_path=str(folder / f'{name}.png')))['img']
    assert len(log) == named and all(f'values up to {2**bits - 1} only' in line for line in log)
    assert np.array_equal(found, image.squeeze()) if settings else found.max() == (2**bits - 1) >> 8


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('kind', ['int8', 'int16', 'int32', 'float32', None])
def test_values_that_are_not_read_as_written(tmp_path, backend, kind):
    """OpenCV and Pillow would make -1 white, and 100 of 100 dark. Transforms that keep the values may read them."""
    path, array, values = tmp_path / 'a.tif', np.array([[-1, 0, 100]], kind), 'signed values or floats'
    if kind is None:
        path, values = tmp_path / 'a.pgm', 'values from 0 to 100'
        path.write_bytes(b'P5\n# by hand\n3 1\n100\n' + bytes([1, 0, 100]))
    else:
        cv2.imwrite(str(path), array)
    with pytest.raises(InputError, match=rf'{path.name} (has {values}, which would be read|cannot be used)'):
        pipeline(LoadImageFromFile(imdecode_backend=backend))(dict(img_path=str(path)))
    if backend == 'cv2' and kind:
        kept = pipeline(LoadImageFromFile(color_type='unchanged'))(dict(img_path=str(path)))['img']
        assert kept.dtype == kind and np.array_equal(kept, array)


@pytest.mark.parametrize(
    'box, ignored, test',
    [((5, 5, 5, 9), 0, False), ((5, 5, 9, 9), 0, False), ((5, 5, 5, 9), 1, False), ((5, 5, 5, 9), 0, True)],
)
def test_boxes_without_area(box, ignored, test):
    """The loss of such a box is infinite. Those of COCO files are left out before; a VOC file may have some."""
    dataset = Images(serialize_data=False, metainfo=dict(classes=('a',)), test_mode=test)
    load = CheckedPipeline(Compose([LoadBoxes(with_bbox=True)]), dataset)
    data = dict(img_path='a.jpg', instances=[dict(bbox=list(box), bbox_label=0, ignore_flag=ignored)])
    if box[0] < box[2] or ignored or test:
        assert len(load(data)['gt_bboxes']) == 1
    else:
        with pytest.raises(
            InputError, match=r'a.jpg has a box without area, \[5.0, 5.0, 5.0, 9.0\]: mend it, or set filter'
        ):
            load(data)


class Maps(Images):
    """A dataset of MMSegmentation, for the pipeline."""

    label_map = None


@pytest.mark.parametrize(
    'labels, kind, form, message',
    [
        ([[0, 1, 255]], 'uint8', 'png', None),
        ([[0, 1, 255]], 'uint16', 'png', None),
        ([[0, 1, 255]], 'float32', 'tiff', None),
        ([[False, True, True]], 'bool', 'png', None),
        ([[0, 256, 1]], 'uint16', 'png', 'has label 256, but labels are whole numbers from 0 to 254'),
        ([[0, 1, 65535]], 'uint16', 'png', 'has label 65535'),
        ([[0, -1, 1]], 'int32', 'tiff', 'has label -1'),
        ([[0, 257, 1]], 'int32', 'tiff', 'has label 257'),
        ([[0, 1.5, 1]], 'float32', 'tiff', 'has label 1.5'),
        ([[0, 'nan', 1]], 'float32', 'tiff', 'has label nan'),
        ([[0, 1, 1]], 'uint8', 'jpeg', 'is a JPEG file, which does not keep the labels'),
        ([[0, 2, 1]], 'uint8', 'png', 'has label 2 where the dataset has 2 classes'),
        ([[0, 1], [1, 0]], 'uint8', 'png', 'is 2 x 2 and its image 1 x 3: a label map has a number per pixel$'),
        (
            [[[0, 0, 9]] * 3] * 2,
            'uint8',
            'png',
            'is 2 x 3 x 3 .* per pixel, and tools/convert_data.py masks makes them',
        ),
    ],
)
@pytest.mark.parametrize('nested', [False, True])
def test_labels(tmp_path, labels, kind, form, message, nested):
    """MMSegmentation casts labels to 8 bits, so that 256 would be learned as 0. So do those in TestTimeAug."""
    labels = np.array(labels, kind)
    Image.fromarray(labels).save(tmp_path / 'map', form)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map'), reduce_zero_label=False, seg_fields=[])
    transform = LoadAnnotations()
    transform = (
        transforms.TestTimeAug([[transform], [lambda data: {'seg': data['gt_seg_map']}]]) if nested else transform
    )
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    load = CheckedPipeline(Compose([transform]), dataset)
    if message is None:
        loaded = load({**data, 'ori_shape': (1, 3)})
        assert np.array_equal(np.ravel(loaded['seg'] if nested else loaded['gt_seg_map']), labels.ravel())
    else:
        with pytest.raises(InputError, match=message):
            load({**data, 'ori_shape': (1, 3)})


class LoadArrays(LoadAnnotations):
    """Reads label maps of NumPy, as a user's transform may."""

    def _load_seg_map(self, results):
        results['gt_seg_map'] = np.load(results['seg_map_path'])


@pytest.mark.parametrize('label', [1, 2, -1])
def test_a_transform_of_the_user_reads_other_files(tmp_path, label):
    """The file is the transform's own matter. The labels that it returns are checked."""
    np.save(tmp_path / 'map.npy', np.array([[0, label]]))
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    load = CheckedPipeline(Compose([LoadArrays()]), dataset)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map.npy'), ori_shape=(1, 2))
    if label == 1:
        assert load(data)['gt_seg_map'].tolist() == [[0, 1]]
    else:
        with pytest.raises(InputError, match=f'map.npy has label {label} where the dataset has 2 classes'):
            load(data)


def test_label_maps_that_are_read_in_another_way(tmp_path):
    """Greys of less than 8 bits are scaled to 255, and label maps are not turned by their EXIF orientation."""
    file = io.BytesIO()
    Image.fromarray(np.array([[True]])).save(file, 'PNG')
    check_label_map('a.png', file.getvalue(), 'pillow')
    with pytest.raises(InputError, match='a.png has fewer than 8 bits per pixel'):
        check_label_map('a.png', file.getvalue(), 'cv2')
    content = file.getvalue()
    header = content[12:24] + bytes([4]) + content[25:29]  # 4 bits instead of 1
    content = content[:12] + header + zlib.crc32(header).to_bytes(4, 'big') + content[33:]
    with pytest.raises(InputError, match='a.png has fewer than 8 bits per pixel'):
        check_label_map('a.png', content, 'pillow')
    with open(turned(tmp_path, 6, suffix='png'), 'rb') as image, pytest.raises(InputError, match='EXIF orientation 6'):
        check_label_map('a.png', image.read(), 'pillow')


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('content', [None, b'P5 3 1 2\n\0\1\2'])
def test_label_maps_of_other_values(tmp_path, content, backend):
    """-1 would be read as 255, which is ignored, and Pillow scales a PGM file, so that 1 of 2 is read as 128."""
    if content is None:
        cv2.imwrite(str(tmp_path / 'a.tif'), np.array([[0, -1, 1]], np.int8))
        content = (tmp_path / 'a.tif').read_bytes()
    with pytest.raises(InputError, match='map has .*, which would be read as other labels'):
        check_label_map('map', content, backend)


@pytest.mark.parametrize('form, fits', [('PNG', True), ('BMP', True), ('TIFF', True), ('GIF', False)])
def test_label_maps_with_a_palette(tmp_path, form, fits):
    """Labels are the numbers of the palette. A GIF file is refused: it is written with a palette of the labels that
    occur, so that 0 and 7 become 0 and 1."""
    labels = np.array([[0, 7, 7]], np.uint8)
    map = Image.fromarray(labels)
    if fits:
        map.putpalette([0, 0, 0, *range(30, 51)])
    map.save(tmp_path / 'map', form)
    dataset = Maps(serialize_data=False, metainfo=dict(classes=tuple('abcdefgh')))
    load = CheckedPipeline(Compose([LoadAnnotations()]), dataset)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map'), reduce_zero_label=False, seg_fields=[])
    if fits:
        assert load({**data, 'ori_shape': (1, 3)})['gt_seg_map'].tolist() == labels.tolist()
    else:
        with pytest.raises(InputError, match='map is a GIF file'):
            load({**data, 'ori_shape': (1, 3)})


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.filterwarnings('error')
def test_large_images_and_label_maps(tmp_path, monkeypatch, backend):
    """Pillow refuses what is twice as large as its limit, and warns before. OpenCV reads more, and so do the checks: a
    label map of less than 8 bits is refused however large it is."""
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    for mode in ('L', '1'):
        Image.new(mode, (16, 16)).save(tmp_path / f'map{mode}.png')
    image = tmp_path / 'a.jpg'
    Image.new('RGB', (16, 16)).save(image)
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    steps = [LoadImageFromFile(imdecode_backend=backend), LoadAnnotations(imdecode_backend=backend)]
    load = CheckedPipeline(Compose(steps), dataset)
    data = dict(img_path=str(image), reduce_zero_label=False, seg_fields=[])
    for name in ('mapL', 'map1'):
        data['seg_map_path'] = str(tmp_path / f'{name}.png')
        if name == 'map1' and backend == 'cv2':
            with pytest.raises(InputError, match='fewer than 8 bits'):
                load(dict(data))
        else:
            assert load(dict(data))['gt_seg_map'].shape == (16, 16)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('size, fits', [((1, 2000), False), ((2000, 1), False), ((1, 100), True)])
def test_shapes_that_a_transform_makes_less_than_a_pixel(size, fits, backend):
    """An image resized with its aspect ratio may have a side of 0 pixels: the sentence names it and its size."""
    resize = transforms.RandomResize((64, 64), (1.0, 1.0), keep_ratio=True, backend=backend)
    data = dict(img_path='a.jpg', img=np.zeros((*size[::-1], 3), np.uint8), img_shape=size[::-1])
    if fits:
        assert pipeline(resize)(data)['img'].shape == (64, 1, 3)
    else:
        sentence = f'^a.jpg is {size[0]} x {size[1]} pixels, and RandomResize makes its shorter side less than a pixel'
        with pytest.raises(InputError, match=sentence):
            pipeline(resize)(data)


def test_errors_of_other_transforms_stay(log):
    """They may be mistakes in the code. The log names the image."""

    def broken(data):
        raise RuntimeError('too small')

    with pytest.raises(RuntimeError, match='^too small$'):
        pipeline(broken)(dict(img_path='a.jpg'))
    assert log == ['function failed on a.jpg']


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize(
    'mode, form', [('L', 'JPEG'), ('CMYK', 'JPEG'), ('RGB', 'PNG'), ('P', 'PNG'), ('RGBA', 'PNG'), ('LA', 'PNG')]
)
def test_what_imagenet_has(tmp_path, log, mode, form, backend):
    """Grey and CMYK images, and PNG under the name of a JPEG, are read as three channels; so are turned ones, silently:
    an image with a class alone is right either way."""
    path, exif = tmp_path / 'n01440764_1.JPEG', Image.Exif()
    exif[0x0112] = 3
    Image.new('RGB', (20, 10), (200, 100, 50)).convert(mode).save(path, form, **dict(exif=exif) if mode == 'L' else {})
    image = pipeline(LoadImageFromFile(imdecode_backend=backend))(dict(img_path=str(path), gt_label=0))['img']
    assert image.shape == (10, 20, 3) and image.dtype == np.uint8 and not log


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('content', [b'', b'<html>not found</html>', b'\xff\xd8\xff\xe0' + b'\0' * 99])
def test_what_downloads_leave(tmp_path, content, backend):
    """Files without a byte, or of something else, are named."""
    path = tmp_path / 'n01440764_1.JPEG'
    path.write_bytes(content)
    with pytest.raises(InputError, match='n01440764_1.JPEG cannot be used'):
        pipeline(LoadImageFromFile(imdecode_backend=backend))(dict(img_path=str(path), gt_label=0))


def test_label_map_of_one_pixel():
    """MMSegmentation squeezes it to a number."""
    data = dict(gt_seg_map=np.array(1, np.uint8), seg_map_path='a', img_path='a', ori_shape=(1, 1))
    images._check_labels(data, 2, [255])
    assert data['gt_seg_map'].shape == (1, 1)
