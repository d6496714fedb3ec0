"""What lies in a folder: annotations in COCO's format, label maps, or a folder of images for each class."""

import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from ..errors import InputError, refusing
from ..weights import first_names

#: endings of images, those that MMPretrain looks for
IMAGES = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')
#: words in names of files and folders that say which part of the data they are
PART = re.compile(r'(?<![a-z])(train|val|test)(?:ing|id|idation)?(?:\d+|annot)?(?![a-z])')
#: words in names of folders of label maps; of those that number objects, not classes; and folders that are no class
MAPS, OBJECTS = re.compile('label|annot|mask|segm|gt'), re.compile('object|instance')
NO_CLASS = re.compile('images?|labels?|annotations?|masks?|jpegimages|imagesets|segmentation.*')
#: where VOC has lists of names
LISTS = dict(boxes='ImageSets/Main', maps='ImageSets/Segmentation')
#: what a head needs -> what is looked for
LOOKED_FOR = dict(
    boxes="a file *.json in COCO's format, with images, annotations and categories, as tools/convert_data.py writes it "
    'from those of VOC, YOLO, labelme and CSV',
    maps='a folder of images, and a folder labels, annotations or masks with a PNG file of the same name for each',
    folders='a folder of images for each of at least two classes, such as train/CLASS/*.jpg and val/CLASS/*.jpg',
)
#: what to do with images that ``start`` writes no config for
OTHER_IMAGES = (
    'docs/own_data.md, "Grey images, 16 bits, more than three bands", has configs for images of 16 bits, of several '
    'bands and of NumPy'
)
#: labels of maps without names are not more than this
MOST_LABELS = 150
PARTS = ('train', 'val', 'test')


class Data(NamedTuple):
    """What lies in a folder."""

    what: str
    classes: Sequence[str]
    images: dict[str, int]  #: part, "train", "val" or "test" -> number
    datasets: dict[str, dict[str, Any]]  #: part -> the arguments of its dataset
    example: Path  #: an image
    files: dict[Path, str] = {}  #: lists of the parts, which are to be written
    common: dict[str, Any] = {}  #: the arguments that all datasets have
    palette: Sequence[Sequence[int]] = ()
    masks: bool = False


def part_of(path: Path | str) -> str:
    """ "train", "val" or "test", or '' if no name in a path says so. The last one that does counts."""
    return next((match[1] for match in reversed([*PART.finditer(Path(path).as_posix().lower())])), '')


def files_below(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files in a folder and its folders that are not hidden, sorted."""
    files = (file for file in folder.rglob('*') if file.suffix.lower() in suffixes and file.is_file())
    return sorted(file for file in files if not any(part[0] == '.' for part in file.relative_to(folder).parts))


def lacking(path: Path, needs: str) -> InputError:
    """The error for a folder without what a head needs: what is there, and what was looked for."""
    found: Counter[str] = Counter()
    for file in path.rglob('*') if path.is_dir() else [path]:
        if file.is_file():
            inside = file.relative_to(path).parent.parts[:2] if path.is_dir() else ()
            found[f'*{file.suffix}' + (f' in {"/".join(inside)}' if inside else '')] += 1
    there = ', '.join(f'{number} {name}' for name, number in found.most_common(6)) or 'nothing'
    other = f'. {OTHER_IMAGES}' if any(name.startswith(('*.npy', '*.tiff')) for name in found) else ''
    return InputError(f'{path} has {there}, and not what was looked for: {LOOKED_FOR[needs]}{other}')


def lists_in(folder: Path, needs: str) -> dict[str, Path]:
    """The lists train.txt, val.txt and test.txt of a folder, or of VOC in it, by part; none without the first two."""
    for place in (folder, folder / LISTS[needs]):
        lists = {part: file for part in PARTS if (file := place / f'{part}.txt').is_file()}
        if {'train', 'val'} <= lists.keys():
            return lists
    return {}


def in_parts(names: Iterable[str], folder: Path, lists: dict[str, Path]) -> dict[str, list[str]]:
    """Names of images by their part: as lists say, or a folder in each name, or else at random."""
    names, parts = sorted(names), defaultdict(list)
    for part, file in lists.items():
        with refusing(f'{file} cannot be read', (OSError, UnicodeDecodeError)):
            listed = {stem(line.strip()) for line in file.read_text('utf-8').splitlines() if line.strip()}
        parts[part] = [name for name in names if stem(name) in listed]
        if not parts[part]:
            raise InputError(f'{file} names none of the annotated images, such as {names[0]}')
    if twice := [name for name, number in Counter(chain(*parts.values())).items() if number > 1]:
        raise InputError(f'{", ".join(map(str, lists.values()))}: several have {first_names(twice)}')
    if not lists and all(part_of(Path(name).parent) for name in names):
        for name in names:
            parts[part_of(Path(name).parent)].append(name)
    return parts if {'train', 'val'} <= parts.keys() else at_random(names, folder)


def stem(name: str) -> str:
    """The name of an image without folders and suffix. Other dots stay."""
    path = Path(name)
    return path.stem if path.suffix.lower() in IMAGES else path.name


def at_random(names: Sequence[str], folder: Path | str) -> dict[str, list[str]]:
    """A fifth of the names for validation, the others for training."""
    if len(names) < 2:
        raise InputError(f'{folder} has {len(names)} images, too few for training and validation')
    mixed = random.Random(0).sample(names, len(names))
    count = max(1, len(names) // 5)
    return dict(train=sorted(mixed[count:]), val=sorted(mixed[:count]))


def read_coco(path: Path, wanted: Sequence[str]) -> Data:
    """Annotations in COCO's format, a file for each part or one for all; ``wanted`` are the classes, if not all.

    The classes are in the order of the file, as MMDetection numbers them.

    Raises:
        InputError: if there are none, if it is unclear which count, or if the parts would number the classes in
            different ways.
    """
    folder = path if path.is_dir() else path.parent
    found = {
        file: contents
        for file in (files_below(path, ['.json']) if path.is_dir() else with_parts(path))
        if (contents := contents_of(file))
    }
    if not found:
        raise lacking(path, 'boxes')
    by_part = defaultdict(list)
    for file in found:
        by_part[part_of(file.relative_to(folder))].append(file)
    for part, several in by_part.items():
        by_part[part] = [file for file in several if file.name.startswith('instances')] or several
    if 'train' in by_part and {'val', 'test'}.intersection(by_part):
        by_part.pop('', None)  # the file that was split
        by_part.setdefault('val', by_part.get('test', []))
    else:  # one that is split, whatever its name
        by_part = {'': [*found]}
    for several in by_part.values():
        if len(several) > 1:
            names = first_names(file.relative_to(folder).as_posix() for file in several)
            raise InputError(
                f'{folder} has several files of annotations, {names}: give one of them instead of the folder, such as '
                f'{several[0]}'
            )
    contents = {part: found[several[0]] for part, several in by_part.items()}
    places = {part: several[0] for part, several in by_part.items()}
    images, written = {part: image_folder(places[part], each, path) for part, each in contents.items()}, {}
    if 'val' not in contents:
        (whole,), (file,) = contents.values(), places.values()
        parts = in_parts([image['file_name'] for image in whole['images']], folder, lists_in(folder, 'boxes'))
        contents = {part: part_of_coco(whole, names) for part, names in parts.items() if names}
        places = {part: file.with_name(f'{file.stem}_{part}.json') for part in contents}
        images = dict.fromkeys(contents, *images.values())
        written = {places[part]: json.dumps(each) for part, each in contents.items()}
    counts: Counter[str] = Counter()
    for each in contents.values():
        names = {category['id']: category['name'] for category in each['categories']}
        counts.update(names.get(annotation['category_id']) for annotation in each['annotations'])
    if absent := [name for name in wanted if not counts[name]]:
        raise InputError(f'{path} has no objects of {first_names(absent)}: it has {first_names(map(str, counts))}')
    categories = {
        places[part]: [category['name'] for category in each['categories']] for part, each in contents.items()
    }
    classes = classes_of(categories, places['train'], wanted or [name for name in counts if name is not None])
    parts = [part for part in PARTS if part in contents]
    files, folders = ({part: relative(each[part], folder) for part in parts} for each in (places, images))
    return Data(
        f"{sum(counts.values())} objects in COCO's format",
        classes,
        {part: len(contents[part]['images']) for part in parts},
        {part: dict(ann_file=files[part], data_prefix=dict(img=folders[part])) for part in parts},
        images['train'] / contents['train']['images'][0]['file_name'],
        written,
        masks=any(annotation.get('segmentation') for annotation in contents['train']['annotations']),
    )


def with_parts(file: Path) -> list[Path]:
    """A file of annotations; with one for training, those for validation and test that are named alike."""
    start, train, end = file.name.rpartition('train')
    beside = [file.with_name(f'{start}{part}{end}') for part in ('val', 'valid', 'test')] if train else []
    return [file, *(each for each in beside if each.is_file())]


def classes_of(categories: dict[Path, list[str]], train: Path, learned: Sequence[str]) -> list[str]:
    """The classes to learn in the order of the file for training, one of those with ``categories``.

    MMDetection numbers the classes of each file in the order of its categories, whatever their order in a config.

    Raises:
        InputError: if the numbers of another file would be different.
    """
    same = 'give all files the same "categories" in the same order, their ids may stay'
    classes = [name for name in categories[train] if name in learned]
    for file, names in {train: categories[train], **categories}.items():  # what the others are compared with is first
        if absent := [str(name) for name in learned if name not in names]:
            raise InputError(f'{file} has no category {first_names(absent)}, of which there are objects: {same}')
        ordered = [name for name in names if name in learned]
        if len(ordered) > len({*ordered}):
            twice = [str(name) for name, number in Counter(ordered).items() if number > 1]
            raise InputError(
                f'{file} has {first_names(twice)} twice in "categories", and MMDetection would take them for different '
                'classes: rename or remove one'
            )
        if ordered != classes:
            first = next(i for i, (a, b) in enumerate(zip(ordered, classes)) if a != b)
            raise InputError(
                f'{file} has its categories in another order than {train}, first {ordered[first]} where the other has '
                f'{classes[first]}, and MMDetection would take one for the other: {same}'
            )
    return classes


def contents_of(file: Path) -> dict | None:
    """The contents of a file in COCO's format, or None of another one."""
    with refusing(f'{file} cannot be read', (OSError, ValueError)):
        contents = json.loads(file.read_bytes())
    if not isinstance(contents, dict) or not all(contents.get(key) for key in ('images', 'annotations', 'categories')):
        return None
    return contents if 'bbox' in contents['annotations'][0] else None


def part_of_coco(whole: dict, names: Sequence[str]) -> dict:
    """The part of COCO's contents that is about some images."""
    wanted = set(names)
    images = [image for image in whole['images'] if image['file_name'] in wanted]
    numbers = {image['id'] for image in images}
    annotations = [annotation for annotation in whole['annotations'] if annotation['image_id'] in numbers]
    return {**whole, 'images': images, 'annotations': annotations}


def image_folder(file: Path, contents: dict, path: Path) -> Path:
    """The folder in which the images of an annotation file are."""
    top = path if path.is_dir() else path.parent.parent if path.parent.name == 'annotations' else path.parent
    names, part = [image['file_name'] for image in contents['images']], part_of(file.relative_to(top))
    folders = [file.parent, top, *sorted(each for each in top.rglob('*') if each.is_dir())]
    found = {each: sum((each / name).is_file() for name in names[:50]) for each in folders}
    folder = max(folders, key=lambda each: (found[each], part_of(each.relative_to(top)) == part))
    if not found[folder]:
        raise InputError(f'{file} is about images such as {names[0]}, which no folder in {top} has')
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise InputError(f'{file} lists images that are not in {folder}: {first_names(absent)}')
    return folder


def relative(path: Path, folder: Path) -> str:
    """A path from a folder, as configs have it."""
    text = Path(os.path.relpath(path, folder)).as_posix()
    return '' if text == '.' else text


def read_maps(path: Path, wanted: Sequence[str]) -> Data:
    """Label maps; ``wanted`` are the names of the labels.

    Raises:
        InputError: if there are none, or if they do not fit the images or the names.
    """
    names_in = defaultdict(list)
    for file in files_below(path, IMAGES) if path.is_dir() else ():
        names_in[file.parent].append(file.name)
    pairs = defaultdict(list)
    for images, maps in product(names_in, names_in):
        name, other = (relative(each, path).lower() for each in (maps, images))
        is_map = MAPS.search(name) and not OBJECTS.search(name) and not MAPS.search(other)
        if is_map and part_of(name) == part_of(other) and (ends := endings(names_in[images], names_in[maps])):
            pairs[part_of(name)].append((images, maps, ends))
    if 'train' in pairs and {'val', 'test'}.intersection(pairs):
        pairs.pop('', None)
        pairs.setdefault('val', pairs.get('test', []))
    elif len(pairs) != 1:
        raise lacking(path, 'maps')
    every = [*chain(*pairs.values())]
    if len(every) > len(pairs) or len({ends for *_, ends in every}) > 1:
        several = first_names(f'{relative(maps, path)} for {relative(images, path)}' for images, maps, _ in every)
        raise InputError(f'{path} has several folders of label maps, or names with several endings: {several}')
    end, map_end = every[0][2]
    stems, datasets = {}, {}
    for part in sorted(pairs, key=('', *PARTS).index):
        images, maps, _ = pairs[part][0]
        stems[part] = {name.removesuffix(map_end) for name in names_in[maps]}
        alone = stems[part] ^ {name.removesuffix(end) for name in names_in[images]}
        folders = [relative(each, path) for each in (images, maps)]
        if alone if part else alone & stems[part]:
            raise InputError(f'{path}: only one of {" and ".join(folders)} has {first_names(sorted(alone))}')
        datasets[part] = dict(data_prefix=dict(img_path=folders[0], seg_map_path=folders[1]))
    files: dict[Path, str] = {}
    if len(stems) == 1:
        prefix, names, lists = *datasets.values(), *stems.values(), lists_in(path, 'maps')
        stems = in_parts(names, path, lists)
        files = {} if lists else {path / f'{part}.txt': '\n'.join(each) for part, each in stems.items()}
        lists = lists or {part: path / f'{part}.txt' for part in stems}
        datasets = {part: dict(ann_file=relative(lists[part], path), **prefix) for part in stems}
    classes, palette = labels_of([maps / name for _, maps, _ in every for name in names_in[maps]], path, wanted)
    common = dict(type='BaseSegDataset', img_suffix=end, seg_map_suffix=map_end)
    counts = {part: len(names) for part, names in stems.items()}
    return Data('label maps', classes, counts, datasets, images / names_in[images][0], files, common, palette)


def endings(images: Sequence[str], maps: Sequence[str]) -> tuple[str, str] | None:
    """How the names of images and of label maps end, if they begin in the same way; None if most do not."""
    for ends in product(*map(common_endings, (images, maps))):
        stems, others = ({name.removesuffix(end) for name in names} for names, end in zip((maps, images), ends[::-1]))
        if len(stems & others) > 0.5 * len(stems) and ends[1].endswith('.png'):
            return ends
    return None


def common_endings(names: Sequence[str]) -> list[str]:
    """The suffix of names, and what else they end with, from a "_", "-" or "."."""
    common = os.path.commonprefix([name[::-1] for name in names])[::-1]
    cuts = [match.start() for match in re.finditer('[_.-]', common)]
    return [common[cut:] for cut in reversed(cuts)]


def names_in(file: Path) -> list[str]:
    """The names of 0, 1, 2 ... in the lines of a file."""
    with refusing(f'{file} cannot be read', (OSError, UnicodeDecodeError)):
        return numbered(file.read_text('utf-8').splitlines(), str(file))


def numbered(names: Sequence[str], place: str) -> list[str]:
    """Names of 0, 1, 2 ... without empty ones at the end.

    Raises:
        InputError: if one before is empty. Without it, the others would get the numbers of their neighbours.
    """
    names = [name.strip() for name in names]
    while names and not names[-1]:
        names.pop()
    if '' in names:
        raise InputError(
            f'{place} has no name for the number {names.index("")}, but for later ones: write one, or close the gap'
        )
    return names


def labels_of(maps: Sequence[Path], path: Path, wanted: Sequence[str]) -> tuple[Sequence[str], Sequence[Sequence[int]]]:
    """The names of the labels 0, 1, 2 ... of label maps, and their colours, if the files have a palette."""
    pixels, palette = np.zeros(256, int), []
    convert = f'convert them by tools/convert_data.py masks {maps[0].parent} --out LABELS'
    for file in tqdm(maps, 'Reading label maps', disable=None):
        with refusing(f'{file} cannot be read'), Image.open(file) as image:
            if image.mode not in ('1', 'L', 'P'):
                raise InputError(f'{file} is coloured (mode {image.mode}), not a number per pixel: {convert}')
            pixels += np.bincount(np.asarray(image, np.uint8).ravel(), minlength=256)
            palette = palette or image.getpalette() or []
    labels = np.flatnonzero(pixels[:255]).tolist()
    if labels in ([], [0]):
        raise InputError(f'the label maps of {path} have the labels {labels} and 255, which is ignored: {convert}')
    file = path / 'classes.txt'
    names = numbered(wanted, 'the list of classes') or (names_in(file) if file.is_file() else [])
    if names and len(names) <= labels[-1] or not names and len(labels) > MOST_LABELS:
        raise InputError(
            f'the label maps of {path} have {len(labels)} labels, up to {labels[-1]}, and {len(names)} names: name the '
            'labels 0, 1, 2 ..., in classes.txt or by classes'
        )
    names = names or [f'label {label}' for label in range(labels[-1] + 1)]
    palette = [palette[3 * number : 3 * number + 3] for number in range(len(names))]
    return names, palette if all(map(len, palette)) else ()


def read_folders(path: Path, wanted: Sequence[str]) -> Data:
    """A folder of images for each class, in parts or not.

    Raises:
        InputError: if there are none, or if the parts have other classes.
    """
    if wanted:
        raise InputError('the classes of a classifier are the names of their folders: give no names')
    tops = sorted(each for each in path.iterdir() if each.is_dir() and each.name[0] != '.') if path.is_dir() else []
    parts = {part_of(each.name): each for each in tops if PART.fullmatch(each.name.lower())}
    if 'train' in parts and {'val', 'test'}.intersection(parts):
        parts.setdefault('val', parts.get('test', path))
        classes = {part: images_of(parts[part]) for part in PARTS if part in parts}
        for part, each in classes.items():
            if different := each.keys() ^ classes['train'].keys():
                raise InputError(
                    f'{path}: {first_names(sorted(different))} is a folder in only one of train and {part}'
                )
        datasets = {part: dict(data_prefix=parts[part].name) for part in classes}
        counts = {part: sum(map(len, each.values())) for part, each in classes.items()}
        names, files = classes['train'], {}
    else:
        names = images_of(path)
        split = [at_random(sorted(images), path / name) for name, images in names.items()]
        lines = {
            part: [f'{image} {label}' for label, each in enumerate(split) for image in each[part]]
            for part in ('train', 'val')
        }
        counts = {part: len(each) for part, each in lines.items()}
        files = {path / f'{part}.txt': '\n'.join(each) for part, each in lines.items()}
        datasets = {part: dict(ann_file=f'{part}.txt', data_prefix='') for part in lines}
    if len(names) < 2 or any(NO_CLASS.fullmatch(name.lower()) for name in names):
        raise lacking(path, 'folders')
    example = next(file for file in files_below(path, IMAGES))
    return Data('folders of images', [*names], counts, datasets, example, files, dict(type='CustomDataset'))


def images_of(folder: Path) -> dict[str, list[str]]:
    """The images of each class, by the name of its folder, as paths from ``folder``."""
    found = {
        each.name: [file.relative_to(folder).as_posix() for file in files_below(each, IMAGES)]
        for each in sorted(folder.iterdir())
        if each.is_dir() and each.name[0] != '.'
    }
    if empty := [name for name, images in found.items() if not images]:
        raise InputError(
            f'{folder}: {first_names(empty)} is a folder without images, which end with {", ".join(IMAGES)}'
        )
    return found
