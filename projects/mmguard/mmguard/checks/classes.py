"""Comparing the classes that datasets and checkpoints list: a label is a place in such a list."""

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import combinations

from ..errors import InputError, warn
from ..weights import first_names


def compare_classes(sources: Iterable[tuple[str, object]]) -> None:
    """Check that a class has one label in all lists of classes of one length; the log has what other names they have.

    Lists of other lengths are of other models, as the datasets that a config inherits and a run does not read.

    Args:
        sources: what lists the classes, for a sentence, and their names in the order of the labels. What is no list is
            left out. The first of two lists is the one to keep.

    Raises:
        InputError: naming a class with two labels. A model would learn one and be measured by the other.
    """
    lists: dict[tuple[str, ...], str] = {}
    for place, names in sources:
        if isinstance(names, (list, tuple)):
            lists.setdefault(tuple(map(str, names)), place)
    for (names, place), (others, other) in combinations(lists.items(), 2):
        if len(names) != len(others):
            continue
        labels, other_labels = _labels(names), _labels(others)
        for name in labels:
            if name in other_labels and labels[name] != other_labels[name]:
                raise InputError(
                    f'{place} and {other} have classes in different orders: {name} is label {labels[name][0]} of the '
                    f'first and {other_labels[name][0]} of the second. Set metainfo.classes to the order of {place}, '
                    f'{first_names(names, 80)}, and number the labels of the files by it: a label is the place of a '
                    'class among the "categories" of a COCO file, and the value of a pixel in a label map'
                )
        absent, added = ([name for name in one if name not in two] for one, two in ((names, others), (others, names)))
        warn(f'{other} has other classes than {place}: {first_names(added)} in place of {first_names(absent)}')


def same_in_other_order(one: object, other: object) -> bool:
    """Whether two lists of classes have the same names in different orders."""
    lists = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    return lists and list(one) != list(other) and sorted(map(str, one)) == sorted(map(str, other))


def say_unlabelled(place: str, classes: Sequence[str], labels: Container[int], what: str) -> None:
    """Name the classes in the log whose label no box, pixel or image has."""
    absent = [str(name) for label, name in enumerate(classes) if label not in labels]
    if absent:
        warn(f'{place} has no {what} of {len(absent)} of its {len(classes)} classes: {first_names(absent)}')


def _labels(names: Iterable[str]) -> dict[str, list[int]]:
    """The labels of each name; ImageNet has two classes "crane"."""
    labels: dict[str, list[int]] = {}
    for label, name in enumerate(names):
        labels.setdefault(name, []).append(label)
    return labels


def saved_meta(checkpoint: object) -> Iterator[dict[str, object]]:
    """What a checkpoint notes of its training datasets, with keys in small letters, such as "classes" and "palette".

    MMEngine notes one dict, or a list of them for datasets that differ. Packages before it had keys in capitals.
    """
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    meta = meta.get('dataset_meta', meta) if isinstance(meta, dict) else None
    for each in meta if isinstance(meta, (list, tuple)) else [meta]:
        if isinstance(each, dict):
            yield {str(key).lower(): value for key, value in each.items()}
