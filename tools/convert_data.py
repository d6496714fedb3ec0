"""Convert annotations of boxes and polygons to one file in COCO's format, and masks of colours to label maps.

    python tools/convert_data.py voc data/own/Annotations --images data/own/images --out data/own/annotations.json
    python tools/convert_data.py yolo data/own/labels --images data/own/images --out data/own/annotations.json \\
        --classes kite donut book
    python tools/convert_data.py labelme data/own/json --images data/own/images --out data/own/annotations.json
    python tools/convert_data.py csv data/own/boxes.csv --images data/own/images --out data/own/annotations.json
    python tools/convert_data.py masks data/own/coloured --out data/own/labels --colours 0,0,0 128,0,0

voc      a folder of XML files with boxes. Difficult objects become crowds, which are not learned.
yolo     a folder of text files; a line has a class number and a box or a polygon in parts of the image. An image
         without a file, or with an empty one, has no objects.
labelme  a folder of JSON files with polygons, rectangles, circles and masks. Polygons of a group are one object.
csv      a table with a header and a box in each row. Columns: image (filename, path), class (label, name), and xmin,
         ymin, xmax, ymax (x1 ... y2; left, top, right, bottom) or x, y, w, h of a left upper corner and a size. A row
         without class and box says that its image has no objects.
masks    a folder of images in which a colour is a class, as black and white. Each becomes a PNG of labels with a
         palette.

The printed classes, or colours, are in the order of the labels: that of --classes or --colours, otherwise sorted.
@FILE in an argument stands for the lines of a file, as in --classes @classes.txt.

An image is found by the name of its annotation file, or by the name in it. If not all of its annotations can be read,
it is left out. What is left out is counted and named, and a file that exists is not replaced.
"""

import argparse
import base64
import csv
import io
import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps
from rich.progress import track

from mmguard.checks.images import IMAGES, check_image, large_images, orientation_of
from mmguard.errors import InputError, describe, refusing
from mmguard.outputs import check_output, whole_file
from mmguard.runs.running import run_tool
from mmguard.weights import first_names

#: what a broken file of the right format raises
BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, csv.Error)
#: names of columns, in small letters
IMAGE_COLUMNS = ('filename', 'file_name', 'file', 'image', 'image_name', 'image_path', 'img', 'path')
CLASS_COLUMNS = ('class', 'label', 'name', 'category', 'class_name', 'label_name')
CORNERS = ('xmin ymin xmax ymax', 'x_min y_min x_max y_max', 'x1 y1 x2 y2', 'left top right bottom')
SIZES = ('x y w h', 'x y width height', 'left top width height', 'bbox_x bbox_y bbox_width bbox_height')
#: size of an image in whose parts coordinates are
PARTS = (1, 1)
#: so many colours are taken for classes without --colours; more are those of smoothed edges, or of JPEG
MOST_COLOURS = 64
#: pixels with this label are ignored; VOC's label maps show them in this colour
IGNORED, IGNORED_COLOUR = 255, (224, 224, 192)


class Object(NamedTuple):
    """An object of an image, with one of a box, polygons and a mask. Coordinates are x, y, in pixels unless noted."""

    name: str  #: of its class
    box: Sequence[float] = ()  #: two opposite corners
    polygons: Sequence[Sequence[float]] = ()  #: x, y, x, y ... each
    mask: tuple[np.ndarray, int, int] | None = None  #: a part of the image, and its left upper corner
    crowd: bool = False
    other: str = ''  #: a kind of shape that a detector does not learn


class Entry(NamedTuple):
    """The objects of an image."""

    image: str  #: its name, of use if it has not that of the annotation file; with or without a suffix
    objects: list[Object]
    size: tuple[int, int] | None = None  #: width and height for which the coordinates are


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars='@'
    )
    parser.add_argument('format', choices=[*READERS, 'masks'])
    parser.add_argument('source', type=Path, help='folder of annotations or masks, or a CSV file')
    parser.add_argument('--images', type=Path, help='folder of images, for all but masks')
    parser.add_argument('--out', type=Path, required=True, help='file to write, or folder of label maps')
    parser.add_argument('--classes', nargs='+', help='names of classes in the order of the labels')
    parser.add_argument('--colours', nargs='+', type=colour, help='R,G,B of each label of masks; others are ignored')
    parser.add_argument('--nearest', action='store_true', help='other colours become the nearest of --colours')
    args = parser.parse_args()
    if args.format == 'masks':
        if args.images or args.nearest and not args.colours:
            parser.error('masks need no --images, and --nearest needs --colours')
    elif args.images is None or args.colours or args.nearest:
        parser.error(f'{args.format} needs --images, and no --colours or --nearest')
    args.classes = [tidy(name) for name in args.classes or ()]
    while args.classes and not args.classes[-1]:  # empty lines at the end of a file
        args.classes.pop()
    if '' in args.classes:
        number = args.classes.index('')
        raise InputError(
            f'--classes has no name for the number {number}, but for later ones: write one, or close the gap'
        )
    for key in ('classes', 'colours'):
        twice = [str(each) for each, number in Counter(getattr(args, key) or ()).items() if number > 1]
        if twice:
            raise InputError(f'--{key} has {first_names(twice)} twice')
    left_out = LeftOut()
    with large_images():
        to_maps(args, left_out) if args.format == 'masks' else to_coco([args], left_out)
    left_out.show()


class LeftOut(defaultdict):
    """Why something is left out -> names of what is left out, of the files that it is in."""

    def __init__(self) -> None:
        super().__init__(list)

    def show(self) -> None:
        for why, names in sorted(self.items(), key=lambda item: -len(item[1]))[:20]:
            print(f'left out  {len(names)}: {why}: {first_names(dict.fromkeys(names))}')
        if len(self) > 20:
            print(f'left out  {sum(map(len, self.values()))} in all, for {len(self)} reasons')


def to_coco(parts: Sequence[argparse.Namespace], left_out: LeftOut) -> None:
    """Write the objects of the images of each part to a file in COCO's format. All files have the same categories.

    All are read before the first is written.
    """
    from mmguard.checks.coco import check_coco  # imports MMDetection

    for args in parts:
        check_output(args.out)
        if args.out.exists():
            raise InputError(f'{args.out} exists already: remove it, or name another file')
    entries = [entries_of(args, left_out) for args in parts]
    found = {item.name for each in entries for entry, _ in each.values() for item in entry.objects} - {''}
    made = []
    for args, each in zip(parts, entries):
        contents, notes = coco_of(each, args, args.classes or sorted(found), left_out)
        if not contents['annotations']:
            left_out.show()
            raise InputError(f'{args.source} has no object for {args.images}: nothing is written')
        check_coco(contents, args.out)
        made.append((args.out, contents, notes))
    for out, contents, notes in made:
        with whole_file(out) as part:
            part.write_text(json.dumps(contents), 'utf-8')
        report(out, contents, notes)


def entries_of(args: argparse.Namespace, left_out: LeftOut) -> dict[Path, tuple[Entry, tuple[int, int]]]:
    """The objects and the size of each image that can be read, by its file."""
    images = ImageFiles(args.images)
    entries: dict[Path, tuple[Entry, tuple[int, int]]] = {}

    def take(place: str, name: str, read: Callable[[], Entry]) -> None:
        try:
            file = images.find(name)  # before an error, so that the image is not one without annotations
            entry = read()
            file = file or images.find(entry.image)
            if file is None or file in entries:
                raise InputError('its image has annotations of another file' if file else 'there is no image')
            entries[file] = entry, displayed_size(file, entry.size)
        except InputError as error:
            left_out[describe(error).removeprefix(f'{args.source / place}: ')].append(place)

    for reader in track(list(READERS[args.format](args.source, args.classes)), 'Reading'):
        take(*reader)
    for name in list(images.unused):
        if args.format == 'yolo':
            take(name, name, partial(Entry, name, []))
        else:
            left_out['images without annotations'].append(name)
    return entries


def coco_of(
    entries: dict[Path, tuple[Entry, tuple[int, int]]], args: argparse.Namespace, classes: list[str], left_out: LeftOut
) -> tuple[dict[str, list[dict]], LeftOut]:
    """Images and their objects in COCO's format, and what was mended in them."""
    contents: dict[str, list[dict]] = dict(images=[], annotations=[])
    contents['categories'] = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
    notes = LeftOut()
    for number, (file, (entry, (width, height))) in enumerate(sorted(entries.items()), 1):
        name = file.relative_to(args.images).as_posix()
        contents['images'].append(dict(id=number, file_name=name, width=width, height=height))
        for item in entry.objects:
            try:
                if item.name not in classes:
                    raise InputError(f'objects of class {item.name!r}, which --classes does not have')
                annotation, mended = annotated(item, width, height, entry.size == PARTS)
            except InputError as error:
                left_out[describe(error)].append(name)
                continue
            for what in mended:
                notes[what].append(name)
            annotation.update(
                id=len(contents['annotations']) + 1, image_id=number, category_id=classes.index(item.name) + 1
            )
            contents['annotations'].append(annotation)
    return contents, notes


def report(out: Path, contents: dict[str, list[dict]], notes: LeftOut) -> None:
    """Print what a file has."""
    objects = contents['annotations']
    empty = len(contents['images']) - len({annotation['image_id'] for annotation in objects})
    masks = sum('segmentation' in annotation for annotation in objects)
    crowds = sum(annotation['iscrowd'] for annotation in objects)
    print(
        f'{out}: {len(contents["images"])} images, {empty} of them without objects\n'
        f'{len(objects)} objects, {masks} of them with masks, {crowds} crowds'
    )
    for what, names in notes.items():
        print(f'{len(names)} {what}: {first_names(dict.fromkeys(names))}')
    counts = Counter(annotation['category_id'] for annotation in objects)
    for category in contents['categories']:
        print(f'{counts[category["id"]]:8}  {category["name"]}')
    print(f'classes = {tuple(category["name"] for category in contents["categories"])}')


def annotated(item: Object, width: int, height: int, parts: bool) -> tuple[dict, list[str]]:
    """An annotation in COCO's format, without ids, and what was mended in it.

    Args:
        width, height: of the image.
        parts: whether the coordinates are parts of the image.

    Raises:
        InputError: saying why nothing can be learned from the object.
    """
    from pycocotools import mask as rle

    from mmguard.checks.coco import wrong_place

    if item.other:
        raise InputError(f'shapes of type {item.other!r}')
    scale = (width, height) if parts else (1, 1)
    polygons = [[value * scale[i % 2] for i, value in enumerate(polygon)] for polygon in item.polygons]
    box = [value * scale[i % 2] for i, value in enumerate(item.box)]
    if not all(map(math.isfinite, chain(box, *polygons))):
        raise InputError('objects with a coordinate that is no number')
    encoded, mended = None, []
    if item.mask is not None:
        part, left, top = item.mask
        whole = np.zeros((height, width), np.uint8, order='F')
        if left < 0 or top < 0 or left + part.shape[1] > width or top + part.shape[0] > height:
            raise InputError('masks that reach out of the image')
        whole[top : top + part.shape[0], left : left + part.shape[1]] = part
        encoded = rle.encode(whole)
        x, y, across, down = rle.toBbox(encoded).tolist()
        box = [x, y, x + across, y + down]
    elif polygons:
        if min(map(len, polygons)) < 6:
            raise InputError('polygons of fewer than 3 points')
        if wrong_place(dict(bbox=[0, 0, 0, 0], segmentation=polygons), width, height):
            raise InputError('polygons with points far outside of the image')
        encoded = rle.merge(rle.frPyObjects(polygons, height, width))
        points = list(chain(*polygons))
        box = [min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])]
    left, right, top, bottom = *sorted(box[::2]), *sorted(box[1::2])
    if [left, top, right, bottom] != box:
        mended.append('boxes had swapped corners, which are in order now')
    inside = [max(left, 0), max(top, 0), min(right, width), min(bottom, height)]
    across, down = inside[2] - inside[0], inside[3] - inside[1]
    area = across * down if encoded is None else float(rle.area(encoded))
    if across <= 0 or down <= 0 or area <= 0:
        flat = left == right or top == bottom
        raise InputError('objects without area' if flat or encoded is not None else 'objects outside of the image')
    if left < -1 or top < -1 or right > width + 1 or bottom > height + 1:
        mended.append('objects reach out of their images, their boxes are cut off at the edges')
    annotation = dict(bbox=[*inside[:2], across, down], area=area, iscrowd=int(item.crowd))
    if polygons:
        annotation['segmentation'] = polygons
    elif encoded is not None:
        annotation['segmentation'] = dict(size=[height, width], counts=encoded['counts'].decode())
    return annotation, mended


def tidy(name: object) -> str:
    """A name with single spaces, and each letter in one of the forms that systems write it in."""
    return unicodedata.normalize('NFC', ' '.join(str(name).split()))


def key(name: str) -> str:
    return unicodedata.normalize('NFC', name.replace('\\', '/')).removeprefix('./')


class ImageFiles:
    """The image files below a folder, found by their names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, defaultdict(list)
        names = [file.relative_to(folder) for file in files_below(folder, IMAGES)]
        if not names:
            raise InputError(f'{folder} has no image, which ends with {", ".join(IMAGES)}: set --images')
        self.unused = dict.fromkeys(name.as_posix() for name in names)
        for name in names:
            for form in (name, name.with_suffix('')):
                self.files[key(form.as_posix())].append(name)

    def find(self, name: str) -> Path | None:
        """The image with this name."""
        found: list[Path] = self.files.get(key(name), [])
        for file in found:
            self.unused.pop(file.as_posix(), None)
        if len(found) > 1:
            raise InputError('there are images of this name with several suffixes')
        return self.folder / found[0] if found else None


def files_below(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files in a folder and its folders that are not hidden, sorted."""
    if not folder.is_dir():
        raise InputError(f'there is no folder {folder}')
    files = (file for file in folder.rglob('*') if file.suffix.lower() in suffixes and file.is_file())
    return sorted(file for file in files if not file.name.startswith('.'))


def displayed_size(file: Path, given: tuple[int, int] | None) -> tuple[int, int]:
    """Width and height of an image as it is displayed, turned by its EXIF orientation.

    Raises:
        InputError: if the image cannot be read, or its annotations are for another size.
    """
    with refusing('the image cannot be read'):
        check_image(str(file))
        with Image.open(file) as image:
            size, orientation = image.size, orientation_of(image)
    size = size[::-1] if orientation > 4 else size
    if given and all(given) and given not in (size, PARTS):
        turned = f', turned by its EXIF orientation {orientation}' if given == size[::-1] and orientation > 4 else ''
        raise InputError(
            f'annotations for {given[0]} x {given[1]} pixels, and the image is {size[0]} x {size[1]}{turned}'
        )
    return size


#: the name of an annotation file, that of its image, with or without a suffix, and what reads its objects
Readers = Iterator[tuple[str, str, Callable[[], Entry]]]


def per_file(suffix: str, read: Callable[[Path, Path, list[str]], Entry], source: Path, classes: list[str]) -> Readers:
    """The readers of a format with a file per image. ``read`` gets the file, its folder in ``source``, and classes."""
    files = files_below(source, (suffix,))
    if not files:
        raise InputError(f'{source} has no file *{suffix}')
    for file in files:
        name = file.relative_to(source)
        yield name.as_posix(), name.with_suffix('').as_posix(), partial(read, file, name.parent, classes)


def voc(file: Path, folder: Path, classes: list[str]) -> Entry:
    from mmguard.checks.voc import read_voc

    contents = read_voc(file)
    objects = [Object(tidy(item.name), item.box, crowd=item.difficult) for item in contents.objects]
    return Entry(beside(folder, contents.image), objects, contents.size)


def beside(folder: Path, image: str) -> str:
    """The name of an image that an annotation file gives, without the folders, which are those of another computer."""
    return (folder / image.replace('\\', '/').rpartition('/')[2]).as_posix()


def text_of(file: Path) -> str:
    with refusing(f'{file}: cannot be read', (OSError, UnicodeDecodeError)):
        return file.read_text('utf-8-sig')


def yolo(file: Path, folder: Path, classes: list[str]) -> Entry:
    objects = []
    for number, line in enumerate(text_of(file).splitlines(), 1):
        with refusing(f'{file}: line {number} is not a class number and parts of an image', BROKEN):
            if not line.split():
                continue
            label, *values = map(float, line.split())
            name_of = classes[int(label)] if label in range(len(classes)) else f'{label:g}'
            if len(values) == 4:
                x, y, w, h = values
                objects.append(Object(name_of, (x - w / 2, y - h / 2, x + w / 2, y + h / 2)))
            elif len(values) >= 6 and len(values) % 2 == 0:
                objects.append(Object(name_of, polygons=[values]))
            else:
                raise InputError(f'{file}: a line has {len(values)} numbers after the class, not a box or a polygon')
    return Entry('', objects, PARTS)


def yolo_files(source: Path, classes: list[str]) -> Readers:
    if not classes:
        raise InputError('the files have numbers of classes: give their names, in this order, as --classes')
    return per_file('.txt', yolo, source, classes)


def labelme(file: Path, folder: Path, classes: list[str]) -> Entry:
    groups: dict[object, Object] = {}
    with refusing(f'{file}: is not a file as labelme writes it', BROKEN):
        contents = json.loads(text_of(file))
        for shape in contents['shapes']:
            item = labelme_object(tidy(shape['label']), shape.get('shape_type') or 'polygon', shape)
            group = shape.get('group_id')
            place = len(groups) if group is None or not item.polygons else (item.name, group)
            if place in groups:
                item = item._replace(polygons=[*groups[place].polygons, *item.polygons])
            groups[place] = item
        size = contents.get('imageWidth'), contents.get('imageHeight')
        image = str(contents.get('imagePath') or '')
    return Entry(beside(folder, image), list(groups.values()), size)


def labelme_object(name: str, kind: str, shape: dict) -> Object:
    points = [(float(x), float(y)) for x, y in shape['points']]
    if kind == 'polygon':
        return Object(name, polygons=[[*chain(*points)]])
    if kind == 'rectangle':
        xs, ys = zip(*points)
        return Object(name, (min(xs), min(ys), max(xs), max(ys)))
    if kind == 'circle':
        (x, y), edge = points
        angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
        circle = np.stack((np.cos(angles), np.sin(angles)), 1) * math.dist((x, y), edge) + (x, y)
        return Object(name, polygons=[circle.ravel().tolist()])
    if kind == 'mask':
        with refusing('a mask is no image'), Image.open(io.BytesIO(base64.b64decode(shape['mask']))) as image:
            return Object(name, mask=(np.asarray(image.convert('L')) > 0, int(points[0][0]), int(points[0][1])))
    return Object(name, other=kind)


def table(source: Path, classes: list[str]) -> Readers:
    """The readers of a CSV file, one for each image."""
    lines = text_of(source).splitlines() or ['']
    delimiter = max(',;\t', key=lines[0].count)
    names = [name.strip().lower() for name in lines[0].replace('"', '').split(delimiter)]
    image, label = (next((each for each in known if each in names), None) for known in (IMAGE_COLUMNS, CLASS_COLUMNS))
    box = next((keys for keys in (*CORNERS, *SIZES) if {*keys.split()} <= {*names}), None)
    wanted = {f'image ({IMAGE_COLUMNS[0]})': image, f'class ({CLASS_COLUMNS[0]})': label, f'box ({CORNERS[0]})': box}
    if missing := [what for what, there in wanted.items() if not there]:
        raise InputError(
            f'{source}: the header is {lines[0][:100]!r}, without columns of {" and of ".join(missing)}, or in another '
            'form that --help names'
        )
    grouped = defaultdict(list)
    with refusing(f'{source}: is not a CSV file', (csv.Error,)):
        rows = csv.DictReader(lines[1:], names, restkey='', restval='', delimiter=delimiter)
        for row in rows:
            if any(row.values()):
                grouped[row[image].strip()].append((rows.line_num + 1, row))
    for name, each in grouped.items():
        yield name, name, partial(table_entry, name, each, label, box)


def table_entry(name: str, rows: list[tuple[int, dict[str, str]]], label: str, box: str) -> Entry:
    objects, size = [], None
    for number, row in rows:
        values = [row[key].strip() for key in box.split()]
        with refusing(f'row {number} has a box or a size that is no number', BROKEN):
            if 'width' not in box and row.get('width') and row.get('height'):
                size = int(row['width']), int(row['height'])
            if row[label].strip() or any(values):
                x, y, *end = map(float, values)
                end = [x + end[0], y + end[1]] if box in SIZES else end
                objects.append(Object(tidy(row[label]), (x, y, *end)))
    return Entry(beside(Path(), name), objects, size)


READERS = dict(
    voc=partial(per_file, '.xml', voc), yolo=yolo_files, labelme=partial(per_file, '.json', labelme), csv=table
)


def colour(text: str) -> tuple[int, int, int]:
    red, green, blue = map(int, text.split(','))
    if not all(0 <= value < 256 for value in (red, green, blue)):
        raise ValueError
    return red, green, blue


def codes_of(file: Path) -> np.ndarray:
    """The colours of an image as one number per pixel, as it is displayed."""
    with refusing('the mask cannot be read'):
        check_image(str(file))
        with Image.open(file) as image:
            if image.mode not in ('1', 'L', 'LA', 'P', 'PA', 'RGB', 'RGBA'):
                raise InputError(f"masks have 8 bits per channel, not Pillow's mode {image.mode}")
            pixels = np.asarray(ImageOps.exif_transpose(image).convert('RGB')).astype(np.int32)
    return pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]


def channels(code: int | np.ndarray) -> tuple:
    """Red, green and blue of what :func:`codes_of` returns."""
    return code >> 16, code >> 8 & 255, code & 255


def to_maps(args: argparse.Namespace, left_out: LeftOut) -> None:
    """Write a label map for each mask of a folder. All masks are read before the first is written."""
    targets: dict[Path, Path] = {}
    pixels: Counter[int] = Counter()
    for file in track(files_below(args.source, IMAGES), 'Reading'):
        target = args.out / file.relative_to(args.source).with_suffix('.png')
        if target in targets or target.exists():
            raise InputError(f'{target} exists already, or is made of two masks: name another --out, or a mask anew')
        try:
            pixels.update(dict(zip(*map(np.ndarray.tolist, np.unique(codes_of(file), return_counts=True)))))
            targets[target] = file
        except InputError as error:
            left_out[describe(error)].append(file.relative_to(args.source).as_posix())
    if not targets:
        left_out.show()
        raise InputError(f'{args.source} has no mask that can be read, which ends with {", ".join(IMAGES)}')
    colours = args.colours or [channels(code) for code in sorted(pixels)]
    if not args.colours and not 1 < len(colours) <= MOST_COLOURS:
        most = ' '.join(','.join(map(str, channels(code))) for code, _ in pixels.most_common(8))
        raise InputError(
            f'the masks in {args.source} have {len(colours)} colours: name those of the classes, as --colours {most}; '
            '--nearest is for smoothed edges and JPEG files'
        )
    if args.classes and len(args.classes) != len(colours) or len(colours) > IGNORED:
        raise InputError(
            f'there are {len(args.classes) or "at most 255"} classes and {len(colours)} colours: '
            + ' '.join(','.join(map(str, each)) for each in colours[:8])
        )
    known = np.array(colours)
    codes = np.array(sorted(pixels))
    labels = np.full(1 << 24, IGNORED, np.uint8)
    if args.nearest:
        for start in range(0, len(codes), 1 << 14):
            some = codes[start : start + (1 << 14)]
            each = np.stack(channels(some), 1)
            labels[some] = ((each[:, None] - known) ** 2).sum(2).argmin(1)
    labels[known @ [1 << 16, 1 << 8, 1]] = range(len(colours))
    palette = np.zeros((256, 3), np.uint8)
    palette[: len(colours)], palette[IGNORED] = colours, IGNORED_COLOUR
    check_output(*targets)
    for target, file in track(targets.items(), 'Writing', len(targets)):
        label_map = Image.fromarray(labels[codes_of(file)])
        label_map.putpalette(palette.tobytes())
        with whole_file(target) as part:
            label_map.save(part)

    counts = Counter()
    for code, number in pixels.items():
        counts[int(labels[code])] += number
    print(f'{args.out}: {len(targets)} label maps')
    for label, each in enumerate(colours):
        name = f'  {args.classes[label]}' if args.classes else ''
        print(f'{label:4}  {",".join(map(str, each)):12}{counts[label] / pixels.total():8.2%}{name}')
    if counts[IGNORED]:
        others = [','.join(map(str, channels(code))) for code, _ in pixels.most_common() if labels[code] == IGNORED]
        share = counts[IGNORED] / pixels.total()
        print(f'{IGNORED:4}  {"others":12}{share:8.2%}  ignored: {first_names(others)}')
    print('metainfo = dict(' + f'classes={tuple(args.classes)}, ' * bool(args.classes) + f'palette={colours})')


if __name__ == '__main__':
    run_tool(main)
