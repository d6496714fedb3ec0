"""Make a small COCO, ADE20K and ImageNet: textured shapes of several classes, scales and overlaps, with exact masks.

    python projects/lab/tools/make_toy_data.py data/toy

writes data/toy/coco, data/toy/ADEChallengeData2016 and data/toy/imagenet. Folders, numbers of classes and file formats
are those of the real data sets, so a config needs only another root. COCO and ADE20K have the same images. A class of
ImageNet is one of 5 shapes with one of 4 textures: 20 classes. The same seed gives the same images.
"""

import argparse
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from mmguard.errors import InputError
from mmguard.outputs import check_output
from mmguard.runs.running import run_tool

#: shape -> (texture, mean hue in degrees, COCO category, ADE20K class number)
SHAPES = {
    'disk': ('stripes', 0, 'frisbee', 120),  # ADE20K: ball
    'triangle': ('checks', 72, 'kite', 150),  # flag
    'rectangle': ('dots', 144, 'book', 68),  # book
    'ring': ('plain', 216, 'donut', 144),  # monitor
    'cross': ('stripes', 288, 'scissors', 140),  # fan
}
#: background -> ADE20K class number; COCO has no category for it
BACKGROUNDS = {'above': 3, 'below': 10}  # sky, grass
#: numbers from 1 to 90 that none of the 80 COCO categories has
COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
#: texture of a class of ImageNet -> its second colour: degrees from the hue of the shape, saturation, value
TEXTURES = {
    'plain': None,
    'stripes': (0, 0, 1),  # white
    'checks': (0, 0, 0.05),  # black
    'dots': (180, 0.9, 0.9),
}
#: images of ImageNet for each image of COCO
CLASSIFIED = 5
SPLITS = {'train': ('train2017', 'training'), 'val': ('val2017', 'validation')}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('root', type=Path, help='folder to write; it must not exist yet')
    parser.add_argument('--train', type=int, default=400, help='training images (default 400)')
    parser.add_argument('--val', type=int, default=60, help='validation images (default 60)')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    for name, least in (('train', 1), ('val', 1), ('seed', 0)):
        if getattr(args, name) < least:
            raise InputError(f'--{name} must be {least} or more, not {getattr(args, name)}')
    if args.root.exists():
        raise InputError(f'{args.root} exists already: remove it, or name another folder')
    unfinished = args.root.with_name(args.root.name + '.unfinished')
    check_output(unfinished / 'coco' / 'annotations' / 'instances_train2017.json')
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (split, count) in enumerate((('train', args.train), ('val', args.val))):
        write_split(unfinished, split, count, np.random.default_rng((args.seed, number)))
        write_classes(unfinished / 'imagenet', split, count * CLASSIFIED, np.random.default_rng((args.seed, number, 1)))
    unfinished.rename(args.root)
    print(
        f'{args.root}: {args.train} training and {args.val} validation images, '
        f'{args.train * CLASSIFIED} and {args.val * CLASSIFIED} for ImageNet'
    )


def write_split(root: Path, split: str, count: int, rng: np.random.Generator) -> None:
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    numbers = [n for n in range(1, 91) if n not in COCO_GAPS]
    categories = dict(zip(names, numbers))
    coco_split, ade_split = SPLITS[split]
    folders = (
        root / 'coco' / coco_split,
        root / 'ADEChallengeData2016' / 'images' / ade_split,
        root / 'ADEChallengeData2016' / 'annotations' / ade_split,
    )
    for folder in (*folders, root / 'coco' / 'annotations'):
        folder.mkdir(parents=True, exist_ok=True)

    images, annotations = [], []
    for image_id in range(1, count + 1):
        image, labels, objects = draw_scene(rng)
        name = f'{image_id:012d}'
        for folder in folders[:2]:
            write_image(folder / f'{name}.jpg', image)
        write_image(folders[2] / f'{name}.png', labels)
        images.append(dict(id=image_id, file_name=f'{name}.jpg', height=image.shape[0], width=image.shape[1]))
        for shape, mask in objects:
            rle = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
            box = coco_mask.toBbox(rle).tolist()
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image_id,
                    category_id=categories[SHAPES[shape][2]],
                    iscrowd=0,
                    area=int(mask.sum()),
                    bbox=box,
                    segmentation=dict(size=rle['size'], counts=rle['counts'].decode()),
                )
            )
    contents = dict(
        images=images,
        annotations=annotations,
        categories=[dict(id=number, name=name) for name, number in categories.items()],
    )
    (root / 'coco' / 'annotations' / f'instances_{coco_split}.json').write_text(json.dumps(contents), 'utf-8')


def write_classes(root: Path, split: str, count: int, rng: np.random.Generator) -> None:
    """Write a split of ImageNet: as many images of each class, the first of the 1000, and a list with their labels."""
    classes = [(shape, kind) for shape in SHAPES for kind in TEXTURES]
    lines = []
    for index in range(count):
        label = index % len(classes)
        name = f'{"-".join(classes[label])}/{index + 1:08d}.JPEG'
        file = root / split / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_image(file, draw_object(*classes[label], rng))
        lines.append(f'{name} {label}\n')
    (root / 'meta').mkdir(exist_ok=True)
    (root / 'meta' / f'{split}.txt').write_text(''.join(lines), 'utf-8')


def write_image(file: Path, image: np.ndarray) -> None:
    """Write an image; cv2.imwrite says nothing if the disk is full."""
    kind = '.png' if file.suffix == '.png' else '.jpg'
    file.write_bytes(cv2.imencode(kind, image, (cv2.IMWRITE_JPEG_QUALITY, 95))[1].tobytes())


def draw_object(shape: str, kind: str, rng: np.random.Generator) -> np.ndarray:
    """An image (H, W, 3) in BGR of one large shape on a background like those of ``draw_scene``.

    Each texture has its own second colour: without it, minutes of training do not tell the textures apart.
    """
    height, width = rng.integers(64, 85, 2)
    horizon = int(height * rng.uniform(0.3, 0.7))
    image = np.empty((height, width, 3), np.float32)
    image[:horizon] = texture('plain', None, horizon, width, rng)
    image[horizon:] = texture('checks', None, height - horizon, width, rng)
    mask = draw_shape(shape, height, width, rng, radii=(18, 32), centres=(0.35, 0.65))
    hue, second = SHAPES[shape][1], TEXTURES[kind]
    if second:
        second = ((hue + second[0]) % 360, *second[1:])
    image[mask] = texture(kind, hue, height, width, rng, second)[mask]
    image += rng.normal(0, 6, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[tuple[str, np.ndarray]]]:
    """An image (H, W, 3) in BGR, its ADE20K class map (H, W), and (shape, visible mask) of every object.

    It is drawn again until at least 30 % and 40 pixels of every object are visible.
    """
    while True:
        height, width = rng.integers(128, 161, 2)
        horizon = int(height * rng.uniform(0.3, 0.7))
        image = np.empty((height, width, 3), np.float32)
        image[:horizon] = texture('plain', None, horizon, width, rng)
        image[horizon:] = texture('checks', None, height - horizon, width, rng)
        labels = np.full((height, width), BACKGROUNDS['above'], np.uint8)
        labels[horizon:] = BACKGROUNDS['below']
        owner = np.full((height, width), -1)
        shapes, areas = [], []
        for index in range(rng.integers(1, 7)):
            shape = str(rng.choice(list(SHAPES)))
            mask = draw_shape(shape, height, width, rng)
            kind, hue, _, ade_class = SHAPES[shape]
            image[mask] = texture(kind, hue, height, width, rng)[mask]
            labels[mask] = ade_class
            owner[mask] = index
            shapes.append(shape)
            areas.append(mask.sum())
        visible = [owner == index for index in range(len(shapes))]
        if all(v.sum() >= max(40, 0.3 * area) for v, area in zip(visible, areas)):
            image += rng.normal(0, 6, image.shape)
            return image.clip(0, 255).astype(np.uint8), labels, list(zip(shapes, visible))


def draw_shape(
    shape: str,
    height: int,
    width: int,
    rng: np.random.Generator,
    radii: tuple[float, float] = (8, 40),
    centres: tuple[float, float] = (0.1, 0.9),
) -> np.ndarray:
    """The (H, W) mask of a shape with random position, radius and orientation.

    ``radii`` are in pixels, and the radius is log-uniform. ``centres`` are fractions of a side.
    """
    radius = np.exp(rng.uniform(*np.log(radii)))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    y -= rng.uniform(*centres) * height
    x -= rng.uniform(*centres) * width
    turn = rng.uniform(0, 2 * np.pi)
    u, v = (np.cos(turn) * x + np.sin(turn) * y) / radius, (np.cos(turn) * y - np.sin(turn) * x) / radius
    r = np.hypot(u, v)
    if shape == 'disk':
        return r < 0.9
    if shape == 'ring':
        return (r < 1) & (r > 0.5)
    if shape == 'rectangle':
        return (abs(u) < 0.95) & (abs(v) < 0.6)
    if shape == 'cross':
        return (abs(u) < 1) & (abs(v) < 0.3) | (abs(v) < 1) & (abs(u) < 0.3)
    return (v > -0.6) & (v + 1.732 * abs(u) < 1.1)  # triangle


def texture(
    kind: str,
    hue: float | None,
    height: int,
    width: int,
    rng: np.random.Generator,
    second: tuple[float, float, float] | None = None,
) -> np.ndarray:
    """A pattern (H, W, 3) of two random colours, with random pitch and orientation.

    The colours are within 30 degrees of the hue. Without a hue they are close to grey. ``second`` sets the second one:
    hue in degrees, saturation, value.
    """
    value, other_value = rng.permutation((rng.uniform(0.3, 0.6), rng.uniform(0.7, 1)))
    if hue is None:
        hue, saturation, other_value = rng.uniform(0, 360), rng.uniform(0, 0.25), value + rng.choice((-0.2, 0.2))
    else:
        hue, saturation = (hue + rng.uniform(-30, 30)) % 360, rng.uniform(0.5, 1)
    hsv = np.array([[(hue, saturation, value), second or (hue, saturation, np.clip(other_value, 0, 1))]], np.float32)
    base, other = 255 * cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    turn, pitch = rng.uniform(0, np.pi), rng.uniform(4, 9)
    u, v = (np.cos(turn) * x + np.sin(turn) * y) / pitch, (np.cos(turn) * y - np.sin(turn) * x) / pitch
    if kind == 'stripes':
        pattern = np.sin(np.pi * u) > 0
    elif kind == 'checks':
        pattern = np.sin(np.pi * u) * np.sin(np.pi * v) > 0
    elif kind == 'dots':
        pattern = np.hypot(u % 2 - 1, v % 2 - 1) < 0.6
    else:
        pattern = np.zeros((height, width), bool)
    return np.where(pattern[..., None], other, base)


if __name__ == '__main__':
    run_tool(main)
