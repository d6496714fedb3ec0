"""Write a config for your own images, and say which commands follow.

    python tools/start.py data/own --head mask-rcnn --backbone nat-tiny
    python tools/start.py data/own --head upernet --backbone elsa-swin-t --classes background kite donut

It looks for what the head learns from. Detectors (mask-rcnn, faster-rcnn, cascade-mask-rcnn, retinanet, dino) need
annotations in COCO's format, VOC's or YOLO's. The last two are converted to COCO's, as by tools/convert_data.py.
Segmentors (upernet, fpn, segformer, setr-pup) need folders of images and label maps, a classifier a folder for each
class. Data may be in parts already, in folders or files named train, val and test. Otherwise a fifth of the images,
drawn at random, is for validation.

The config has about twenty lines, which docs/own_data.md explains. It is written into the folder of the data, and so
are the lists of the parts. Nothing else is changed, and no file is replaced.
"""

import argparse
import os
import shlex
from pathlib import Path

import yaml

import mmattn
from mmattn.own_data import HEADS
from mmattn.own_data.folder import IMAGES, contents_of, files_below, names_in, part_of
from mmguard.checks.images import large_images
from mmguard.errors import InputError, refusing
from mmguard.runs.configs import load_config
from mmguard.runs.running import run_tool
from mmguard.tools.convert_data import LeftOut, to_coco
from mmguard.weights import first_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path, help="folder of images and annotations, or a file in COCO's format in it")
    parser.add_argument('--head', required=True, help=', '.join(HEADS))
    parser.add_argument(
        '--backbone', required=True, help='as in the names of configs: nat-tiny, elsa-swin-t, shunted-s ...'
    )
    parser.add_argument(
        '--classes',
        nargs='+',
        default=[],
        help='names of the numbers 0, 1, 2 ... of label maps and YOLO, or classes to learn of COCO and VOC',
    )
    args = parser.parse_args()
    if HEADS.get(args.head) and HEADS[args.head].needs == 'boxes' and args.data.is_dir():
        args.classes = convert(args.data, args.classes)
    cfg = mmattn.start(args.data, args.head, args.backbone, args.classes)
    config = near(cfg.filename)
    load_config(config)  # The guards say now what is missing, as a package of OpenMMLab.
    for line in config.read_text('utf-8').splitlines()[:2]:
        print(line.removeprefix('# '))
    print(f'{config} is written. Train, test and predict:\n')
    tools = near(Path(__file__).parent)
    prefix = cfg.val_dataloader.dataset.data_prefix
    images = next(iter(prefix.values())) if isinstance(prefix, dict) else prefix
    images = near(Path(cfg.data_root, images))
    best = f'work_dirs/{shlex.quote(config.stem)}/best_*.pth'
    print(command(tools / 'train.py', config), '--auto-scale-lr')
    print(command(tools / 'test.py', config), best, '--show-dir tested')
    print(command(tools / 'predict.py', config), best, shlex.quote(str(images)), '--out found')


def near(path: str | Path) -> Path:
    """A path from the current folder if it is below it, or else the whole path."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def command(*parts: Path) -> str:
    return ' '.join(['python', *(shlex.quote(str(part)) for part in parts)])


def convert(data: Path, classes: list[str]) -> list[str]:
    """Write annotations of VOC and YOLO in COCO's format, if there are none. Return the names that are not used yet.

    Raises:
        InputError: if several folders have annotations of the same part.
    """
    if any(map(contents_of, files_below(data, ['.json']))):
        return classes
    images = {file.with_suffix('') for file in files_below(data, IMAGES)}
    voc = {file.parent for file in files_below(data, ['.xml'])}
    texts = files_below(data, ['.txt'])
    yolo = {folder for file in texts for folder in file.parents if folder.name == 'labels' and data in folder.parents}
    yolo = yolo or {file.parent for file in texts if file.with_suffix('') in images}
    kind, folders = ('voc', voc) if voc else ('yolo', yolo)
    outs = {folder: data / f'{part_of(folder.relative_to(data)) or "annotations"}.json' for folder in sorted(folders)}
    if len({*outs.values()}) < len(outs):
        raise InputError(
            f'several folders have annotations: {", ".join(map(str, outs))}: name one of them, or their parts'
        )
    names = classes or (names_of(data) if kind == 'yolo' else [])
    parts = []
    for source, out in outs.items():
        beside = [source.with_name(name) for name in ('JPEGImages', 'images') if source.with_name(name).is_dir()]
        images = (beside or [source])[0]
        parts.append(argparse.Namespace(format=kind, source=source, images=images, out=out, classes=names))
    left_out = LeftOut()
    with large_images():
        to_coco(parts, left_out)
    left_out.show()
    return classes if kind == 'voc' or not outs else []


def names_of(data: Path) -> list[str]:
    """The names of YOLO's numbers: "names" in a YAML file, or the lines of classes.txt or of a file *.names."""
    for file in files_below(data, ['.yaml', '.yml']):
        with refusing(f'{file} cannot be read'):
            contents = yaml.safe_load(file.read_text('utf-8'))
        names = contents.get('names') if isinstance(contents, dict) else None
        if names:
            return in_order(names, file)
    for file in files_below(data, ['.txt', '.names']):
        if file.name == 'classes.txt' or file.suffix == '.names':
            return names_in(file)
    return []


def in_order(names: object, file: Path) -> list[str]:
    """The names of 0, 1, 2 ... that a YAML file has, as a list or by number.

    Raises:
        InputError: if it has neither, or not each number once.
    """
    if isinstance(names, list):
        return [str(name) for name in names]
    if not isinstance(names, dict):
        raise InputError(f'{file}: "names" is {str(names)[:100]!r}, not a list or a name for each number: mend it')
    with refusing(f'{file}: a key of "names" is no number', (ValueError,)):
        numbered = sorted((int(str(key)), str(name)) for key, name in names.items())
    numbers = [number for number, _ in numbered]
    if numbers != [*range(len(numbers))]:
        raise InputError(
            f'{file}: "names" has the numbers {first_names(map(str, numbers))}, which should be 0, 1, 2 ... without '
            'a gap: name each, or give all names in their order as --classes'
        )
    return [name for _, name in numbered]


if __name__ == '__main__':
    run_tool(main)
