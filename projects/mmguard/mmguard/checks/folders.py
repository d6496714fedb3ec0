"""Checks of folders and lists of labelled images, before MMPretrain's ImageNet or CustomDataset reads them."""

import functools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from mmengine.dataset import BaseDataset
from mmengine.fileio import list_from_file

from ..errors import InputError, refusing, warn
from .classes import say_unlabelled


class Labels(NamedTuple):
    """Which label the images of each folder have, if folders are classes."""

    place: str  #: of the dataset, in the config
    numbers: dict[str, int]  #: name of a folder -> label
    numbered: bool  #: whether the labels are the numbers of the folders in the order of their names


def read_labels(dataset: BaseDataset, place: str, num_classes: int | None) -> Labels:
    """Check that images and labels are there, without opening images, and return the labels of folders.

    Args:
        dataset: a CustomDataset of MMPretrain, such as ImageNet, that has read nothing yet.
        num_classes: labels are from 0 to this less one; None if it is not known.

    Raises:
        InputError: for a list with a line that gives no image and label, or names files that are not there; for folders
            that are not as many as the classes, or without images; for images outside of the folders.
    """
    classes = dataset.metainfo.get('classes')
    if isinstance(classes, str):
        raise InputError(f'{place}: metainfo.classes must be a list of names, or a file with them, not {classes!r}')
    check = _check_list if dataset.ann_file else _check_folders
    return check(dataset, place, num_classes)


def absent_files(names: Iterable[str], root: str = '') -> list[str]:
    """The names of no file below ``root``. Each folder is read once: looking for each file would take minutes."""
    files = functools.cache(lambda folder: set(os.listdir(folder)) if os.path.isdir(folder) else set())
    return [name for name in names if os.path.basename(name) not in files(os.path.join(root, os.path.dirname(name)))]


def _check_list(dataset: BaseDataset, place: str, num_classes: int | None) -> Labels:
    path = dataset.ann_file
    with refusing(f'{place}: {path} cannot be read', (OSError, UnicodeDecodeError)):
        lines = list_from_file(path)
    names, labels = {}, {}
    for number, line in enumerate(lines, 1):
        name, label = line, None
        if dataset.with_label:
            name, _, text = line.strip().rpartition(' ')
            try:
                label = int(text)
            except ValueError:
                name = ''
        if not name:
            what = 'the path of an image' + ', a space and its label, a whole number' * dataset.with_label
            raise InputError(f'{place}: line {number} of {path} must be {what}, not {line!r}')
        if label is not None and (label < 0 or num_classes and label >= num_classes):
            why = f'labels of {num_classes} classes are from 0 to {num_classes - 1}' if num_classes else 'it is below 0'
            raise InputError(f'{place}: line {number} of {path} has label {label}: {why}')
        if names.setdefault(name, label) != label:
            raise InputError(
                f'{place}: line {number} of {path} gives {name} a second label: {label} after {names[name]}'
            )
        folder = name.rpartition('/')[0]
        if labels.setdefault(folder, label) != label:
            labels[folder] = None
    if not lines:
        raise InputError(f'{place}: {path} lists no image')
    if dataset.with_label and num_classes:
        say_unlabelled(
            f'{place}: {path}', dataset.metainfo.get('classes') or range(num_classes), {*names.values()}, 'image'
        )
    absent = absent_files(names, dataset.img_prefix)
    if absent:
        raise InputError(
            f'{place}: {path} names {len(absent)} images not in {dataset.img_prefix}, the first being {absent[0]}'
        )
    outside = [name for name in names if os.path.isabs(name) or os.path.normpath(name).startswith('..')]
    if outside:
        warn(f'{place}: {len(outside)} images of {path} are outside of {dataset.img_prefix}, the first is {outside[0]}')
    return Labels(place, {} if None in labels.values() else labels, False)


def _check_folders(dataset: BaseDataset, place: str, num_classes: int | None) -> Labels:
    root = dataset.img_prefix
    known, found = ', '.join(sorted(dataset.extensions)), _Found(dataset)
    if not dataset.with_label:
        if not found.images_below(root):
            raise InputError(f'{place}: {root} has no image ({known})')
        found.warn(place)
        return Labels(place, {}, False)
    with os.scandir(root) as entries:
        entries = sorted(entries, key=lambda entry: entry.name)
    folders = [entry.name for entry in entries if entry.is_dir()]
    alone = [entry.name for entry in entries if not entry.is_dir() and found.is_image(entry)]
    if alone:
        raise InputError(
            f'{place}: {root} has images outside of folders, as {alone[0]}: each must be in a folder of its class, or '
            'ann_file must list the images with their labels, as meta/train.txt and meta/val.txt beside ImageNet do'
        )
    if not folders:
        raise InputError(f'{place}: {root} has no folders of classes: set data_root')
    if num_classes and len(folders) != num_classes:
        raise InputError(
            f'{place}: {root} has {len(folders)} folders, from {folders[0]} to {folders[-1]}, and there are '
            f'{num_classes} classes: there must be a folder for each, or an ann_file with labels; for other '
            'classes, set metainfo.classes of the dataset and num_classes of the model'
        )
    classes = dataset.metainfo.get('classes') or ()
    if sorted(classes) == folders != list(classes):
        raise InputError(
            f'{place}: metainfo.classes are the folders of {root} in another order: MMPretrain numbers the folders in '
            'the order of their names, so the classes must be in this order too'
        )
    empty = [folder for folder in folders if not found.images_below(os.path.join(root, folder))]
    found.warn(place)
    if empty:
        raise InputError(
            f'{place}: {len(empty)} of the {len(folders)} folders of {root} have no image ({known}), the first being '
            f'{empty[0]}: complete them, or list the images that there are, with labels, in an ann_file'
        )
    alike = {}
    for folder in folders:
        other = alike.setdefault(unicodedata.normalize('NFKC', folder).casefold().strip(), folder)
        if other != folder:
            warn(f'{place}: {root} has the folders {other!r} and {folder!r}: they are two classes')
    return Labels(place, {folder: number for number, folder in enumerate(folders)}, True)


class _Found:
    """The files in the folders of a dataset, as MMPretrain finds them: with folders in folders, and through links."""

    def __init__(self, dataset: BaseDataset) -> None:
        self.dataset = dataset
        self.left_out = Counter()  #: reason -> number of files
        self.seen = {os.path.realpath(dataset.img_prefix): dataset.img_prefix} if dataset.with_label else {}

    def is_image(self, entry: os.DirEntry) -> bool:
        """Whether MMPretrain takes a file; otherwise it is counted as left out."""
        if entry.name.startswith('.'):
            self.left_out['hidden'] += 1
        elif not entry.is_file():
            self.left_out['links to nothing'] += 1
        elif self.dataset.is_valid_file(entry.name):
            return True
        else:
            self.left_out[os.path.splitext(entry.name)[1].lower() or 'without a suffix'] += 1
        return False

    def images_below(self, folder: str) -> int:
        """The number of images.

        Raises:
            InputError: for a folder that is read twice, by a link: in a circle, or with the labels of two classes. For
                a link to a folder within the folder of a class: it gives the label of the class to images elsewhere.
        """
        other = self.seen.setdefault(os.path.realpath(folder), folder)
        if other != folder:
            raise InputError(f'{folder} is a link to {other}, so its images would be read twice: remove the link')
        number = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir():
                    number += self.is_image(entry)
                elif self.dataset.with_label and entry.is_symlink():
                    raise InputError(
                        f'{entry.path} is a link to {os.path.realpath(entry.path)}, so all images there would get the '
                        'label of this folder: remove the link, or give labels in an ann_file'
                    )
                else:
                    number += self.images_below(entry.path)
        return number

    def warn(self, place: str) -> None:
        """Name what is left out in the log."""
        if self.left_out:
            most = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))[:12]
            counts = ', '.join(f'{number} {reason}' for reason, number in most)
            warn(
                f'{place}: {self.left_out.total()} files in {self.dataset.img_prefix} are left out: {counts}; the '
                f'suffixes that are read, {", ".join(sorted(self.dataset.extensions))}, are extensions of the dataset'
            )


def compare_labels(datasets: Iterable[Labels]) -> None:
    """Check that a folder has the same label in all datasets, as far as their folders are classes.

    Raises:
        InputError: naming a folder with two labels. The model would learn one and be measured by the other.
    """
    for first, second in combinations(datasets, 2):
        if first.numbered and second.numbered and first.numbers != second.numbers:
            name = min(first.numbers.keys() ^ second.numbers.keys())
            where = first.place if name in first.numbers else second.place
            raise InputError(
                f'the folders of {first.place} and {second.place} are of different classes: only {where} has {name}, '
                'and labels are the numbers of the folders in the order of their names'
            )
        for name in sorted(first.numbers.keys() & second.numbers.keys()):
            labels = [each.numbers[name] for each in (first, second)]
            if labels[0] != labels[1]:
                raise InputError(
                    f'images in the folder {name} have label {labels[0]} in {first.place} and {labels[1]} in '
                    f'{second.place}: a list gives labels, and without a list they are the numbers of the folders in '
                    'the order of their names'
                )
