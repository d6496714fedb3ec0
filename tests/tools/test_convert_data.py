"""Annotations of other formats become COCO's, and masks of colours become label maps."""

import base64
import io
import json
import re
import unicodedata

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.tools.in_process import run_tool

#: the dog of a.jpg and the cat of kühe.JPEG; sub/b.PNG has no object
DOG, CAT = [4, 5, 10, 6], [20, 10, 12, 15]
SIZES = {'a.jpg': (40, 30), 'kühe.JPEG': (40, 60), 'sub/b.PNG': (20, 10)}


@pytest.fixture
def images(tmp_path):
    """Images with other suffixes, in other folders, not in ASCII and turned by their EXIF orientation."""
    folder = tmp_path / 'images'
    (folder / 'sub').mkdir(parents=True)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    Image.new('RGB', (40, 30)).save(folder / 'a.jpg')
    Image.new('RGB', (60, 40)).save(folder / 'kühe.JPEG', exif=turned)
    Image.new('RGB', (20, 10)).save(folder / 'sub' / 'b.PNG')
    return folder


def xml(objects, size=None, image='a.jpg'):
    """An XML file of objects: class, left, top, right, bottom as VOC counts pixels, from 1."""
    size = '<size><width>{}</width><height>{}</height></size>'.format(*size) if size else ''
    keys = ('xmin', 'ymin', 'xmax', 'ymax')
    for name, *box in objects:
        box = ''.join(f'<{key}>{value}</{key}>' for key, value in zip(keys, box))
        size += f'<object><name>{name}</name><bndbox>{box}</bndbox></object>'
    return f'<annotation><filename>{image}</filename>{size}</annotation>'


def shapes(*found, size=(40, 30), **more):
    """A file of labelme: class, type of shape, points of each, and what else it has."""
    keys = ('label', 'shape_type', 'points')
    found = [dict(zip(keys, one), **more) for one in found]
    return json.dumps(dict(shapes=found, imageWidth=size[0], imageHeight=size[1], imagePath='..\\images\\a.jpg'))


FORMATS = dict(
    voc={
        'a.xml': xml([('dog', 5, 6, 15, 12)], (40, 30)),
        # as macOS writes the name
        unicodedata.normalize('NFD', 'kühe.xml'): xml([('cat', 33, 11, 21, 26)], (40, 60), 'old name.jpg'),
        'sub/b.xml': xml([]),
    },
    yolo={
        'a.txt': '1 0.225 0.26666666666666666 0.25 0.2\n\n',
        'kühe.txt': '0 0.65 0.29166666666666667 0.3 0.25',
        'sub/b.txt': '',
    },
    labelme={
        'a.json': shapes(('dog', 'rectangle', [[14, 5], [4, 11]])),
        'kühe.json': shapes(('cat', 'polygon', [[20, 10], [32, 10], [32, 25], [20, 25]]), size=(40, 60)),
        'sub/b.json': shapes(size=(None, None)),
    },
    csv={
        'table.csv': 'Filename;width;height;class;xmin;ymin;xmax;ymax\n'
        'a.jpg;40;30;dog;4;5;14;11\nC:\\photos\\kühe.JPEG;40;60;cat;20;25;32;10\nsub/b.PNG;;;;;;;\n'
    },
)


def convert(form, files, images, *arguments):
    """The result of the tool, what it prints, and the contents that it has written, None if it has not."""
    source, out = images.parent / form, images.parent / 'out.json'
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    if form == 'csv':
        source = source / 'table.csv'
    done = run_tool('convert_data', form, source, '--images', images, '--out', out, *arguments)
    assert not list(images.parent.glob('*.part*'))
    return done, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.parametrize('form', FORMATS)
def test_formats_say_the_same(form, images):
    """Each format gives the same sizes, as images are displayed, and the same boxes, of classes in order."""
    names = ('--classes', 'cat', 'dog') if form == 'yolo' else ()
    done, found = convert(form, FORMATS[form], images, *names)
    assert done.returncode == 0 and 'left out' not in done.stdout, done.stdout + done.stderr
    assert "classes = ('cat', 'dog')" in done.stdout
    assert '3 images, 1 of them without objects\n2 objects' in done.stdout
    assert found['categories'] == [dict(id=1, name='cat'), dict(id=2, name='dog')]
    assert {image['file_name']: (image['width'], image['height']) for image in found['images']} == SIZES
    dog, cat = found['annotations']
    assert (dog['image_id'], dog['category_id'], dog['iscrowd'], dog['area']) == (1, 2, 0, pytest.approx(60))
    assert (cat['image_id'], cat['category_id'], cat['area']) == (2, 1, pytest.approx(180))
    assert dog['bbox'] == pytest.approx(DOG) and cat['bbox'] == pytest.approx(CAT)
    assert ('1 boxes had swapped corners' in done.stdout) == (form in ('voc', 'csv'))


def test_boxes_are_those_of_mmdetection(images):
    """CocoDataset reads from the written file what XMLDataset reads from VOC's; difficult objects are not learned."""
    from mmdet.datasets import CocoDataset, XMLDataset

    (images / 'JPEGImages').symlink_to(images)
    (images.parent / 'list.txt').write_text('a')
    text = xml([('dog', 5, 6, 15, 12), ('cat', 1, 1, 9, 9)], (40, 30))
    text = text.replace('<name>cat', '<difficult>1</difficult><name>cat')
    done, _ = convert('voc', {'a.xml': text}, images, '--classes', 'dog', 'cat')
    assert '1 crowds' in done.stdout and 'left out  2: images without annotations: kühe.JPEG, sub/b.PNG' in done.stdout
    metainfo = dict(classes=('dog', 'cat'))
    prefix = dict(sub_data_root=str(images.parent))
    read = [
        CocoDataset(ann_file=str(images.parent / 'out.json'), data_prefix=dict(img=str(images)), metainfo=metainfo),
        XMLDataset(
            ann_file=str(images.parent / 'list.txt'), data_prefix=prefix, ann_subdir='voc', img_subdir='images',
            metainfo=metainfo,
        ),
    ]  # fmt: skip
    first, second = (dataset.get_data_info(0) for dataset in read)
    assert first['img_path'] == second['img_path']
    keys = ('bbox', 'bbox_label', 'ignore_flag')
    first, second = ([[one[key] for key in keys] for one in info['instances']] for info in (first, second))
    assert first == second == [[[4, 5, 14, 11], 0, 0], [[0, 0, 8, 8], 1, 1]]


def encoded(mask):
    Image.fromarray(mask).save(file := io.BytesIO(), 'PNG')
    return base64.b64encode(file.getvalue()).decode()


def test_shapes_become_masks(images):
    """Polygons of YOLO and labelme, groups of them, circles and masks cover the right pixels."""
    from pycocotools import mask as rle

    square = '1 0.1 0.2 0.35 0.2 0.35 0.4 0.1 0.4'
    _, found = convert('yolo', {'a.txt': square}, images, '--classes', 'cat', 'dog')
    (one,) = found['annotations']
    assert one['bbox'] == pytest.approx([4, 6, 10, 6]) and one['area'] == 60
    assert one['segmentation'] == [pytest.approx([4, 6, 14, 6, 14, 12, 4, 12])]

    (images.parent / 'out.json').unlink()
    left, right = ([[x, 2], [x + 5, 2], [x + 5, 6], [x, 6]] for x in (1, 20))
    grouped = json.loads(shapes(('dog', 'polygon', left), ('dog', 'polygon', right), group_id=3))
    circle = shapes(('cat', 'circle', [[20, 15], [30, 15]]), ('cat', 'point', [[1, 1]]))
    mask = shapes(('cow', 'mask', [[7, 3], [10, 5]]), mask=encoded(np.array([[0, 1, 1, 0], [1, 1, 0, 0]], bool)))
    grouped['shapes'] += json.loads(circle)['shapes'] + json.loads(mask)['shapes']
    done, found = convert('labelme', {'a.json': json.dumps(grouped)}, images)
    assert "left out  1: shapes of type 'point': a.jpg" in done.stdout and '3 of them with masks' in done.stdout
    two, disc, part = found['annotations']
    assert (two['bbox'], two['area'], len(two['segmentation'])) == ([1, 2, 24, 4], 40, 2)
    assert disc['bbox'] == pytest.approx([10, 5, 20, 20]) and disc['area'] == pytest.approx(np.pi * 100, rel=0.02)
    assert part['bbox'] == [7, 3, 3, 2]
    assert np.argwhere(rle.decode(part['segmentation'])).tolist() == [[3, 8], [3, 9], [4, 7], [4, 8]]


def test_boxes_with_sizes(images):
    """x and y with a width and height are not taken for corners, nor these for the size of an image."""
    table = 'path,label,x,y,width,height\na.jpg,dog,4,5,10,6\n'
    _, found = convert('csv', {'table.csv': table}, images)
    assert found['annotations'][0]['bbox'] == DOG


GOOD = ('dog', 5, 6, 15, 12)


@pytest.mark.parametrize(
    'form, files, message',
    [
        ('voc', {'b.xml': xml([GOOD], image='b.jpg')}, 'left out  1: there is no image: b.xml'),
        ('voc', {'c.xml': xml([GOOD], image='a.jpg')}, 'its image has annotations of another file: c.xml'),
        ('voc', {'b.xml': ''}, 'left out  1: is not an XML file: ParseError: no element found: line 1, column'),
        ('voc', {'b.xml': xml([('dog', 1, 2, 3, 'a')])}, "<ymax> is no number: ValueError: could not convert string"),
        ('voc', {'kühe.xml': xml([GOOD], (60, 40))}, '60 x 40 pixels, and the image is 40 x 60, turned by its EXIF'),
        ('voc', {'kühe.xml': xml([('cat', 5, 6, 15, 12)])}, "objects of class 'cat', which --classes does not have"),
        ('voc', {'kühe.xml': xml([('dog', 50, 6, 60, 12)])}, 'left out  1: objects outside of the image: kühe.JPEG'),
        ('voc', {'kühe.xml': xml([('dog', 5, 6, 50, 12)])}, '1 objects reach out of their images, their boxes are cut'),
        ('yolo', {'kühe.txt': '0 0.5 0.5 0.1 a'}, 'line 1 is not a class number and parts of an image'),
        ('yolo', {'kühe.txt': '0 0.5 0.5 0.1 nan'}, 'objects with a coordinate that is no number: kühe.JPEG'),
        ('yolo', {'kühe.txt': '0 100 100 20 20'}, 'objects outside of the image: kühe.JPEG'),
        ('yolo', {'kühe.txt': '0 0.1 0.1 900 0.1 900 0.4'}, 'polygons with points far outside of the image'),
        ('labelme', {'b.json': '[' * 9}, 'is not a file as labelme writes it: JSONDecodeError'),
        ('labelme', {'b.json': shapes(('dog', 'mask', [[0, 0]]), mask='AAAA')}, 'a mask is no image: Unidentified'),
        ('csv', 'kühe.JPEG,dog,1,2,3,a\n', 'row 3 has a box or a size that is no number: ValueError'),
    ],
)  # fmt: skip
def test_what_is_left_out(form, files, message, images):
    """It is counted and named, and the dog of a.jpg is converted."""
    first = dict(
        voc={'a.xml': xml([GOOD])},
        yolo={'a.txt': '0 0.225 0.26666666666666666 0.25 0.2'},
        labelme={'a.json': shapes(('dog', 'rectangle', [[4, 5], [14, 11]]))},
    )
    table = 'file_name,name,x1,y1,x2,y2\na.jpg,dog,4,5,14,11\n'
    files = {'table.csv': table + files} if form == 'csv' else {**first[form], **files}
    done, found = convert(form, files, images, '--classes', 'dog')
    assert done.returncode == 0 and message in done.stdout, done.stdout + done.stderr
    assert found['annotations'][0]['bbox'] == pytest.approx(DOG) and found['images'][0]['file_name'] == 'a.jpg'


def test_images_of_broken_files_have_no_place(images):
    """An image whose annotations cannot be read, or are of one of two images, is not one without objects."""
    Image.new('RGB', (40, 30)).save(images / 'a.png')
    files = {'kühe.txt': '0 1 1', 'a.txt': '0 0.5 0.5 0.1 0.1', 'sub/b.txt': '0 0.5 0.5 0.5 0.4'}
    done, found = convert('yolo', files, images, '--classes', 'dog', '')
    assert [image['file_name'] for image in found['images']] == ['sub/b.PNG']
    assert 'left out  1: there are images of this name with several suffixes: a.txt' in done.stdout


def test_broken_images_are_left_out(images):
    """Also those without a file of annotations."""
    (images / 'a.jpg').write_bytes((images / 'a.jpg').read_bytes()[:-9])
    (images / 'c.png').write_bytes(b'no image')
    done, found = convert('yolo', FORMATS['yolo'], images, '--classes', 'cat', 'dog')
    assert 'images/a.jpg cannot be used: the image is cut short' in done.stdout and len(found['images']) == 2
    assert 'left out  1: the image cannot be read: UnidentifiedImageError' in done.stdout


@pytest.mark.parametrize(
    'form, files, arguments, message',
    [
        ('voc', {'a.txt': ''}, [], r'voc has no file \*.xml'),
        ('voc', {'a.xml': xml([GOOD])}, ['--classes', 'cat'], 'voc has no object for .*images: nothing is written'),
        ('yolo', {'a.txt': '0 1 1 1 1'}, ['--classes', 'cat', '', 'dog'], '--classes has no name for the number 1'),
        ('yolo', {'a.txt': '0 1 1 1 1'}, [], 'the files have numbers of classes: give their names, in this order'),
        ('csv', {'table.csv': 'image,box\n'}, [], r"'image,box', without columns of class \(class\) and of box \(xmin"),
    ],
)  # fmt: skip
def test_refusals(form, files, arguments, message, images):
    """What cannot be converted at all ends in a sentence, and nothing is written."""
    done, found = convert(form, files, images, *arguments)
    assert done.returncode == 1 and found is None
    assert re.search(message, done.sentence), done.sentence


def test_files_are_not_replaced(images):
    """An annotation file or label map that exists may be the only copy."""
    convert('voc', FORMATS['voc'], images)
    done, _ = convert('voc', FORMATS['voc'], images)
    assert 'out.json exists already: remove it' in done.sentence
    Image.fromarray(np.eye(4, dtype=bool)).save(images / 'sub' / 'm.png')
    done = run_tool('convert_data', 'masks', images / 'sub', '--out', images / 'sub')
    assert 'exists already, or is made of two masks' in done.sentence


def maps(tmp_path, masks, *arguments):
    """The result of the tool, and the labels of the maps that it has written, with their images of Pillow."""
    for name, mask in masks.items():
        file = tmp_path / 'masks' / name
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.array(mask, np.uint8)).save(file)
    done = run_tool('convert_data', 'masks', tmp_path / 'masks', '--out', tmp_path / 'maps', *arguments)
    return done, [Image.open(file) for file in sorted((tmp_path / 'maps').glob('*'))]


def test_masks_become_label_maps(tmp_path):
    """Black and white are sorted, MMSegmentation reads 0 and 1, and the palette keeps the colours."""
    from mmseg.datasets import BaseSegDataset
    from mmseg.datasets.transforms import LoadAnnotations

    done, files = maps(tmp_path, {'a.png': [[0, 255, 255], [0, 0, 0]]}, '--classes', 'ground', 'cell')
    assert done.returncode == 0, done.stderr
    assert "metainfo = dict(classes=('ground', 'cell'), palette=[(0, 0, 0), (255, 255, 255)])" in done.stdout
    assert '1  255,255,255   33.33%  cell' in done.stdout
    assert files[0].mode == 'P' and np.array_equal(files[0].convert('L'), [[0, 255, 255], [0, 0, 0]])
    Image.new('RGB', (3, 2)).save(tmp_path / 'a.jpg')
    dataset = BaseSegDataset(
        metainfo=dict(classes=('ground', 'cell'), palette=[(0, 0, 0), (255, 255, 255)]),
        data_prefix=dict(img_path=str(tmp_path), seg_map_path=str(tmp_path / 'maps')),
    )
    assert LoadAnnotations()(dataset[0])['gt_seg_map'].tolist() == [[0, 1, 1], [0, 0, 0]]


def test_colours_are_labels(tmp_path):
    """Labels are in the order of --colours; others are ignored and counted, or take the nearest."""
    red, green, dark = (200, 0, 0), (0, 200, 0), (10, 180, 0)
    mask = {'a.png': [[red, green, dark], [green, green, green]]}
    colours = ('--colours', '0,200,0', '200,0,0')
    done, files = maps(tmp_path, mask, *colours)
    assert 'metainfo = dict(palette=[(0, 200, 0), (200, 0, 0)])' in done.stdout
    assert (
        np.array_equal(files[0], [[1, 0, 255], [0, 0, 0]])
        and '255  others        16.67%  ignored: 10,180,0' in done.stdout
    )
    (tmp_path / 'maps' / 'a.png').unlink()
    _, files = maps(tmp_path, mask, *colours, '--nearest')
    assert np.array_equal(files[0], [[1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    'masks, arguments, message',
    [
        ({'a.png': np.arange(90).reshape(9, 10)}, (), 'have 90 colours: name those of the classes, as --colours'),
        ({'a.png': np.eye(2)}, ('--classes', 'a', 'b', 'c'), 'there are 3 classes and 2 colours: 0,0,0 1,1,1'),
        ({'a.png': np.eye(2), 'a.bmp': np.eye(2)}, (), 'made of two masks'),
    ],
)  # fmt: skip
def test_masks_are_refused(tmp_path, masks, arguments, message):
    """Nothing is written."""
    done, files = maps(tmp_path, masks, *arguments)
    assert done.returncode == 1 and message in done.sentence and not files


def test_broken_masks_are_left_out(tmp_path):
    """Masks with more than 8 bits, or that are no images, are named."""
    (tmp_path / 'masks').mkdir()
    Image.fromarray(np.eye(2, dtype=np.uint16)).save(tmp_path / 'masks' / 'b.png')
    (tmp_path / 'masks' / 'c.png').write_bytes(b'no image')
    done, files = maps(tmp_path, {'a.png': np.eye(2)})
    assert len(files) == 1 and "not Pillow's mode I;16: b.png" in done.stdout and 'cannot be read: ' in done.stdout
