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
from mmguard.checks.arrays import LoadImageFromNpyFile
from mmguard.checks.images import CheckedPipeline, check_image, check_label_map
from mmguard.errors import InputError

BACKENDS = pytest.mark.parametrize('backend', ['cv2', 'pillow'])


class Images(BaseDataset):
    def load_data_list(self):
        return [dict(img_path='a.jpg')]


class Maps(Images):
    """A dataset of MMSegmentation, for the pipeline."""

    label_map = None


def pipeline(*steps, kind=Images, classes='ab', **settings):
    dataset = kind(serialize_data=False, metainfo=dict(classes=tuple(classes)), **settings)
    return CheckedPipeline(Compose(steps), dataset)


def read(path, backend='cv2', data={}, **settings):
    """Load an image as a config's pipeline does."""
    load = pipeline(LoadImageFromFile(imdecode_backend=backend, **settings))
    return load(dict(img_path=str(path), **data))['img']


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_images_cut_short(tmp_path, suffix):
    """OpenCV up to 4.10 makes the rest grey. Bytes after a complete image do no harm."""
    path = tmp_path / f'a.{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    for contents in (whole, whole + b'more' * 100):
        path.write_bytes(contents)
        check_image(str(path))
    path.write_bytes(whole[: int(len(whole) * 0.9)])
    with pytest.raises(InputError, match=f'a.{suffix} cannot be used: the image is cut short'):
        check_image(str(path))


@pytest.mark.parametrize(
    'contents, problem', [(b'', 'the file is empty'), (b'no image', 'it is no image, or a damaged')]
)
def test_files_that_are_no_images(tmp_path, contents, problem):
    """The sentence says it in words, not in those of OpenCV."""
    (tmp_path / 'a.jpg').write_bytes(contents)
    with pytest.raises(InputError, match=f'a.jpg cannot be used: {problem}'):
        read(tmp_path / 'a.jpg')


def turned(folder, orientation, size=(20, 10), suffix='jpg'):
    """An image of a size as it is stored, with an EXIF orientation."""
    path, exif = folder / f'a.{suffix}', Image.Exif()
    exif[0x0112] = orientation
    Image.new('RGB', size).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize('suffix, backend', [('jpg', 'cv2'), ('png', 'pillow')])
@pytest.mark.parametrize(
    'orientation, colour, height, width, message',
    [
        (1, 'color', 10, 21, '20 x 10 pixels as it is read, but 21 x 10 in its annotations: correct the width'),
        (6, 'color', 20, 10, None),
        (6, 'color', 10, 20, '10 x 20 pixels as it is read, but 20 x 10 .* its EXIF orientation is 6, so they must'),
        (6, 'color_ignore_orientation', 10, 20, None),
        (99, 'color', 10, 20, None),
    ],
)
def test_sizes_of_images(tmp_path, suffix, backend, orientation, colour, height, width, message):
    """Images are turned by their EXIF orientation. Boxes and masks for another size would not be at their objects."""
    arguments = turned(tmp_path, orientation, suffix=suffix), backend, dict(height=height, width=width)
    if message is None:
        assert read(*arguments, color_type=colour).shape == (height, width, 3)
    else:
        with pytest.raises(InputError, match=message):
            read(*arguments, color_type=colour)


@pytest.mark.parametrize('orientation, size, lines', [(3, (20, 10), 1), (6, (9, 9), 1), (99, (9, 9), 0)])
def test_turns_that_keep_the_size(tmp_path, log, orientation, size, lines):
    """Nobody can see whether annotations are of the turned image. The log names one image of a folder. An image with a
    class alone is right either way."""
    folder = tmp_path / str(orientation)  # pytest uses a path again after it has removed it
    folder.mkdir()
    path = turned(folder, orientation, size)
    read(path, data=dict(gt_label=0))
    assert not log
    for _ in range(2):
        read(path, data=dict(height=size[1], width=size[0]))
    assert len(log) == lines
    assert all(f'a.jpg has EXIF orientation {orientation}, which does not change its size' in line for line in log)


def test_deep_images(tmp_path):
    """OpenCV scales 16 bits to 8. Pillow cuts them off."""
    path = tmp_path / 'a.png'
    Image.fromarray(np.full((10, 20), 256 * 77, np.uint16)).save(path)
    assert (read(path) == 77).all()
    with pytest.raises(InputError, match="a.png has more than 8 bits per channel: read it with imdecode_backend='cv2'"):
        read(path, 'pillow')


def test_many_bands(tmp_path, monkeypatch):
    """tifffile reads them as they are. A file with one band after the other would be an image of other sides. Without
    the package, a sentence says what to install."""
    path, image = tmp_path / 'a.tif', np.random.default_rng(0).integers(0, 9000, (10, 20, 13), np.uint16)
    tifffile = pytest.importorskip('tifffile')
    tifffile.imwrite(path, image)
    assert np.array_equal(read(path, 'tifffile', color_type='unchanged'), image)
    tifffile.imwrite(path, image.transpose(2, 0, 1), planarconfig='separate', photometric='minisblack')
    with pytest.raises(InputError, match='is read as 13 x 10 x 20, with its bands before height and width'):
        read(path, 'tifffile')
    monkeypatch.setattr('mmguard.checks.images.find_spec', lambda name: None)
    with pytest.raises(InputError, match='needs the package: pip install tifffile'):
        read(path, 'tifffile')


def test_arrays(tmp_path):
    """Files of NumPy are read as they are. What is no image is refused, and no code in a file is run."""
    path, image = tmp_path / 'a.npy', np.random.default_rng(0).integers(0, 9000, (10, 20, 13), np.uint16)
    load = pipeline(LoadImageFromNpyFile(to_float32=True))
    np.save(path, image)
    found = load(dict(img_path=str(path)))
    assert found['img'].dtype == np.float32 and (found['img'] == image).all() and found['ori_shape'] == (10, 20)
    for wrong, message in ((image[None], r'uint16 of shape \(1, 10, 20, 13\)'), (image > 3, 'bool'), ([{}], 'Object')):
        np.save(path, wrong)
        with pytest.raises(InputError, match=f'a.npy (has|cannot be used: ValueError:) {message}'):
            load(dict(img_path=str(path)))


@pytest.mark.parametrize('bits, settings, named', [(14, {}, 1), (16, {}, 0), (12, dict(color_type='unchanged'), 0)])
def test_few_bits_in_deep_images(tmp_path, log, bits, settings, named):
    """Values of 10 to 14 bits in 16 are nearly black in 8: the log says so once per folder, with the largest value and
    the setting. With it, the values are kept."""
    folder = tmp_path / str(bits)
    folder.mkdir()
    image = np.linspace(0, 2**bits - 1, 200).astype(np.uint16).reshape(10, 20)
    for name in 'ab':
        cv2.imwrite(str(folder / f'{name}.png'), image)
        found = read(folder / f'{name}.png', **settings)
    assert len(log) == named and all(f'values up to {2**bits - 1} only' in line for line in log)
    assert np.array_equal(found, image) if settings else found.max() == (2**bits - 1) >> 8


@BACKENDS
@pytest.mark.parametrize('kind', ['int8', 'float32', None])
def test_values_that_are_not_read_as_written(tmp_path, backend, kind):
    """OpenCV and Pillow would make -1 white, and 100 of 100 dark. Transforms that keep the values may read them."""
    path, array, values = tmp_path / 'a.tif', np.array([[-1, 0, 100]], kind), 'signed values or floats'
    if kind is None:
        path, values = tmp_path / 'a.pgm', 'values from 0 to 100'
        path.write_bytes(b'P5\n# by hand\n3 1\n100\n' + bytes([1, 0, 100]))
    else:
        cv2.imwrite(str(path), array)
    with pytest.raises(InputError, match=rf'{path.name} (has {values}, which would be read|cannot be used)'):
        read(path, backend)
    if backend == 'cv2' and kind:
        kept = read(path, color_type='unchanged')
        assert kept.dtype == kind and np.array_equal(kept, array)


def test_boxes_without_area():
    """The loss of such a box is infinite. Those of COCO files are left out before; a VOC file may have some."""
    for test, ignored in ((True, 0), (False, 1), (False, 0)):
        load = pipeline(LoadBoxes(with_bbox=True), test_mode=test)
        data = dict(img_path='a.jpg', instances=[dict(bbox=[5, 5, 5, 9], bbox_label=0, ignore_flag=ignored)])
        if test or ignored:
            assert len(load(data)['gt_bboxes']) == 1
    with pytest.raises(
        InputError, match=r'a.jpg has a box without area, \[5.0, 5.0, 5.0, 9.0\]: mend it, or set filter'
    ):
        load(data)


@pytest.mark.parametrize(
    'labels, kind, form, message',
    [
        ([[0, 1, 255]], 'uint8', 'png', None),
        ([[False, True, True]], 'bool', 'png', None),
        ([[0, 256, 1]], 'uint16', 'png', 'has label 256, but labels are whole numbers from 0 to 254'),
        ([[0, -1, 1]], 'int32', 'tiff', 'has label -1'),
        ([[0, 'nan', 1]], 'float32', 'tiff', 'has label nan'),
        ([[0, 1, 1]], 'uint8', 'jpeg', 'is a JPEG file, which does not keep the labels'),
        ([[0, 1, 1]], 'uint8', 'gif', 'is a GIF file, which may number the labels anew'),
        ([[0, 2, 1]], 'uint8', 'png', 'has label 2 where the dataset has 2 classes'),
        ([[0, 1], [1, 0]], 'uint8', 'png', 'is 2 x 2 and its image 1 x 3: a label map has a number per pixel$'),
        ([[[0, 0, 9]] * 3] * 2, 'uint8', 'png', 'is 2 x 3 x 3 .* per pixel, and tools/convert_data.py masks makes'),
    ],
)
def test_labels(tmp_path, labels, kind, form, message):
    """MMSegmentation casts labels to 8 bits, so that 256 would be learned as 0; also within TestTimeAug."""
    labels = np.array(labels, kind)
    Image.fromarray(labels).save(tmp_path / 'map', form)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map'), reduce_zero_label=False, seg_fields=[])
    views = transforms.TestTimeAug([[LoadAnnotations()], [lambda data: {'seg': data['gt_seg_map']}]])
    load = pipeline(views, kind=Maps)
    if message is None:
        assert np.array_equal(np.ravel(load({**data, 'ori_shape': (1, 3)})['seg']), labels.ravel())
    else:
        with pytest.raises(InputError, match=message):
            load({**data, 'ori_shape': (1, 3)})


def test_label_maps_with_a_palette(tmp_path):
    """Labels are the numbers of the palette."""
    labels = Image.fromarray(np.array([[0, 7, 7]], np.uint8))
    labels.putpalette([0, 0, 0, *range(30, 51)])
    labels.save(tmp_path / 'map', 'PNG')
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map'), reduce_zero_label=False, seg_fields=[])
    found = pipeline(LoadAnnotations(), kind=Maps, classes='abcdefgh')({**data, 'ori_shape': (1, 3)})
    assert found['gt_seg_map'].tolist() == [[0, 7, 7]]


class LoadArrays(LoadAnnotations):
    """Reads label maps of NumPy, as a user's transform may."""

    def _load_seg_map(self, results):
        results['gt_seg_map'] = np.load(results['seg_map_path'])


def test_a_transform_of_the_user_reads_other_files(tmp_path):
    """The file is the transform's own matter. The labels that it returns are checked."""
    load = pipeline(LoadArrays(), kind=Maps)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map.npy'), ori_shape=(1, 2))
    np.save(tmp_path / 'map.npy', np.array([[0, 1]]))
    assert load(dict(data))['gt_seg_map'].tolist() == [[0, 1]]
    np.save(tmp_path / 'map.npy', np.array([[0, -1]]))
    with pytest.raises(InputError, match='map.npy has label -1 where the dataset has 2 classes'):
        load(data)


def test_label_maps_that_are_read_in_another_way(tmp_path):
    """Greys of less than 8 bits are scaled to 255, -1 is read as 255, which is ignored, and 1 of 2 in a PGM as 128.
    Label maps are not turned by their EXIF orientation."""
    file = io.BytesIO()
    Image.fromarray(np.array([[True]])).save(file, 'PNG')
    bit = file.getvalue()
    check_label_map('a.png', bit, 'pillow')
    header = bit[12:24] + bytes([4]) + bit[25:29]  # 4 bits instead of 1
    nibble = bit[:12] + header + zlib.crc32(header).to_bytes(4, 'big') + bit[33:]
    cv2.imwrite(str(tmp_path / 'a.tif'), np.array([[0, -1, 1]], np.int8))
    with open(turned(tmp_path, 6, suffix='png'), 'rb') as image:
        exif = image.read()
    for content, backend, message in (
        (bit, 'cv2', 'has fewer than 8 bits per pixel'),
        (nibble, 'pillow', 'has fewer than 8 bits per pixel'),
        (exif, 'pillow', 'has EXIF orientation 6'),
        ((tmp_path / 'a.tif').read_bytes(), 'pillow', 'has .*, which would be read as other labels'),
        (b'P5 3 1 2\n\0\1\2', 'pillow', 'has .*, which would be read as other labels'),
    ):
        with pytest.raises(InputError, match=f'a.png {message}'):
            check_label_map('a.png', content, backend)


def test_label_map_of_one_pixel():
    """MMSegmentation squeezes it to a number."""
    data = dict(gt_seg_map=np.array(1, np.uint8), seg_map_path='a', img_path='a', ori_shape=(1, 1))
    images._check_labels(data, 2, [255])
    assert data['gt_seg_map'].shape == (1, 1)


@BACKENDS
@pytest.mark.filterwarnings('error')
def test_large_images_and_label_maps(tmp_path, monkeypatch, backend):
    """Pillow refuses what is twice as large as its limit, and warns before. OpenCV reads more, and so do the checks: a
    label map of less than 8 bits is refused however large it is."""
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    for mode in ('L', '1'):
        Image.new(mode, (16, 16)).save(tmp_path / f'map{mode}.png')
    Image.new('RGB', (16, 16)).save(tmp_path / 'a.jpg')
    load = pipeline(*(kind(imdecode_backend=backend) for kind in (LoadImageFromFile, LoadAnnotations)), kind=Maps)
    data = dict(img_path=str(tmp_path / 'a.jpg'), reduce_zero_label=False)
    for name in ('mapL', 'map1'):
        given = dict(data, seg_map_path=str(tmp_path / f'{name}.png'), seg_fields=[])
        if name == 'map1' and backend == 'cv2':
            with pytest.raises(InputError, match='fewer than 8 bits'):
                load(given)
        else:
            assert load(given)['gt_seg_map'].shape == (16, 16)
    assert Image.MAX_IMAGE_PIXELS == 100


@BACKENDS
def test_shapes_that_a_transform_makes_less_than_a_pixel(backend):
    """An image resized with its aspect ratio may have a side of 0 pixels: the sentence names it and its size."""
    resize = pipeline(transforms.RandomResize((64, 64), (1.0, 1.0), keep_ratio=True, backend=backend))
    data = dict(img_path='a.jpg', img=np.zeros((2000, 1, 3), np.uint8), img_shape=(2000, 1))
    sentence = '^a.jpg is 1 x 2000 pixels, and RandomResize makes its shorter side less than a pixel'
    with pytest.raises(InputError, match=sentence):
        resize(data)


def test_errors_of_other_transforms_stay(log):
    """They may be mistakes in the code. The log names the image."""

    def broken(data):
        raise RuntimeError('too small')

    with pytest.raises(RuntimeError, match='^too small$'):
        pipeline(broken)(dict(img_path='a.jpg'))
    assert log == ['function failed on a.jpg']


@pytest.mark.parametrize('content', [None, b'', b'<html>not found</html>'], ids=['absent', 'empty', 'text'])
def test_what_downloads_leave(tmp_path, content):
    """Files that are not there, without a byte, or of something else, are named."""
    path = tmp_path / 'n01440764_1.JPEG'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match='n01440764_1.JPEG cannot be used'):
        read(path, data=dict(gt_label=0))
