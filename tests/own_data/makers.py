"""Tiny data of each kind, as users have it: two to six images of 64 x 48 with squares of three classes."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ('book', 'donut', 'kite')


def image(file: Path, seed: int = 0) -> None:
    """Noise with a square, whose class is the seed modulo 3."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 60, (48, 64, 3), np.uint8)
    pixels[8:40, 8:40, seed % 3] = 255
    Image.fromarray(pixels).save(file)


def coco(file: Path, images: Path, count: int = 6, masks: bool = True, names: Sequence[str] = ()) -> None:
    """Annotations with an object in each image; the fourth category has none. ``names`` are those of the files."""
    names = names or [f'{number}.jpg' for number in range(count)]
    contents = dict(
        images=[], annotations=[], categories=[dict(id=3 + i, name=n) for i, n in enumerate((*CLASSES, 'none'))]
    )
    for number, name in enumerate(names):
        image(images / name, number)
        contents['images'].append(dict(id=number, file_name=name, width=64, height=48))
        box = dict(id=number, image_id=number, category_id=3 + number % 3, bbox=[8, 8, 32, 32], area=1024, iscrowd=0)
        contents['annotations'].append(dict(box, segmentation=[[8, 8, 40, 8, 40, 40, 8, 40]]) if masks else box)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(contents))


def label_maps(
    images: Path, maps: Path, count: int = 6, palette: bool = False, ends: Sequence[str] = ('.jpg', '.png')
) -> None:
    """Maps of the labels 0 to 2, and 255 in a corner."""
    maps.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image(images / f'{number}{ends[0]}', number)
        labels = np.zeros((48, 64), np.uint8)
        labels[8:40, 8:40], labels[:4, :4] = number % 3, 255
        label_map = Image.fromarray(labels)
        if palette:
            label_map.putpalette([0, 0, 0, 9, 9, 9, 200, 0, 0, *bytes(759)])  # shorter ones cut off labels
        label_map.save(maps / f'{number}{ends[1]}')


def class_folders(folder: Path, count: int = 2) -> None:
    for label, name in enumerate(CLASSES):
        for number in range(count):
            image(folder / name / f'{number}.jpg', label + 3 * number)


def voc_file(file: Path, name: str) -> None:
    """The annotations of an image: an object, whose class has a name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    box = '<xmin>9</xmin><ymin>9</ymin><xmax>40</xmax><ymax>40</ymax>'
    file.write_text(
        f'<annotation><filename>{file.stem}.jpg</filename><size><width>64</width><height>48</height></size>'
        f'<object><name>{name}</name><bndbox>{box}</bndbox></object></annotation>'
    )


def voc(folder: Path, count: int = 5) -> None:
    """As VOC has it, with lists."""
    for number in range(count):
        image(folder / 'JPEGImages' / f'{number}.jpg', number)
        voc_file(folder / 'Annotations' / f'{number}.xml', CLASSES[number % 3])
    lists = folder / 'ImageSets' / 'Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_text('0\n1\n2\n')
    (lists / 'val.txt').write_text('3\n4\n')


def voc_in_parts(folder: Path) -> None:
    """As Roboflow has it: images and annotations in a folder of each part. The second one lacks the first class."""
    for part, numbers in dict(train=range(3), valid=range(1, 3)).items():
        for number in numbers:
            image(folder / part / f'{part}{number}.jpg', number)
            voc_file(folder / part / f'{part}{number}.xml', CLASSES[number])


def yolo(folder: Path, parts: Sequence[str] = ('train', 'valid'), count: int = 3) -> None:
    """As Roboflow has it: images and labels in a folder of each part."""
    for part in parts:
        for number in range(count):
            image(folder / part / 'images' / f'{part}{number}.jpg', number)
            file = folder / part / 'labels' / f'{part}{number}.txt'
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'{number % 3} 0.375 0.5 0.5 0.6\n')
    (folder / 'data.yaml').write_text('names: [book, donut, kite]\nnc: 3\n')
