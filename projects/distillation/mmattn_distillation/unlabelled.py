"""Any folder of images as data to train with, without labels, in batches of several sizes."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from numbers import Integral, Real

import numpy as np
import torch
from mmcv import imread
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.registry import DATA_SAMPLERS, DATASETS
from PIL import Image
from torch.utils.data import Sampler

from mmattn.arguments import check_choice, check_rates, check_whole
from mmattn.errors import InputError, describe, warn
from mmguard.checks.images import IMAGES, CheckedPipeline, check_image, image_files

#: files whose headers are read at once: on a network disk, most of the time is waiting
THREADS = 16
#: images in a row that cannot be loaded, after which something else must be wrong
TRIES = 100


@DATASETS.register_module()
class UnlabelledImages(BaseDataset):
    """All images below a folder, in the order of their paths.

    Suffixes are those of :data:`mmguard.checks.images.IMAGES`, in any case. Names that begin with a dot are left out.
    Links are followed, and each folder is read once.

    Of a file with several images, as an animated one, the first is read. Copies and links to files count as images of
    their own.

    Files are looked at when the dataset is read: those that are empty, cut short or no images are left out, and the log
    has their number and the first names. This takes some minutes for a million files on a local disk. If a file
    turns out to be broken only when it is loaded, the log names it once, and the next image takes its place.

    Each item goes to the pipeline as "img_path", "name" (the path below the folder) and "sample_idx". The index may be
    a tuple of a number and a dict, as :class:`MultiScaleBatchSampler` makes it; then the dict is "view" of the item.

    Args:
        data_root: the folder.
        pipeline: transforms.
        held_out: share of the images that are not trained with, in [0, 1). A hash of its name decides on each image, so
            that the images of both splits stay the same when others are added or the folder is moved.
        split: "train" for the images that are not held out, or "held_out" for the others.
        indices: numbers of the images to use, or how many of the first ones.
        lazy_init: read the folder later, at ``full_init``.

    Raises:
        InputError: for a folder that is missing, or has no image that can be used.
        ValueError: for any other argument that cannot be used.
    """

    def __init__(
        self,
        data_root: str,
        pipeline: Sequence[dict | Callable] = (),
        held_out: float = 0.0,
        split: str = 'train',
        indices: int | Sequence[int] | None = None,
        lazy_init: bool = False,
    ) -> None:
        check_rates(held_out=held_out)
        check_choice('split', split, ('train', 'held_out'))
        if split == 'held_out' and not held_out:
            raise ValueError("held_out must be above 0 for split='held_out', not 0")
        self.held_out, self.split = held_out, split
        given = indices if isinstance(indices, Sequence) else (indices or None,)
        if indices is not None and not (given and all(isinstance(index, Integral) for index in given)):
            raise ValueError(f'indices must be whole numbers of images, or how many of the first ones, not {indices!r}')
        super().__init__(
            data_root=os.path.expanduser(str(data_root)),
            data_prefix=dict(img_path=''),
            pipeline=list(pipeline),
            indices=indices,
            lazy_init=lazy_init,
        )
        # Errors of loading are InputErrors from now on. Others are mistakes in the pipeline, and end the run.
        self.pipeline = CheckedPipeline(self.pipeline, self)

    def check_folder(self) -> None:
        """Raise an InputError if the folder is missing or has no image."""
        if not os.path.isdir(self.data_root):
            raise InputError(f'there is no image folder {self.data_root}: set data_root')
        if next(image_files(self.data_root), None) is None:
            raise InputError(f'{self.data_root} has no image ({", ".join(IMAGES)}): set data_root')

    def full_init(self) -> None:
        if not self._fully_initialized:
            self.check_folder()
            super().full_init()
            # Data workers share it, so that each file is named once.
            self.broken = torch.zeros(len(self), dtype=torch.bool).share_memory_()

    def load_data_list(self) -> list[dict]:
        root, unread = self.data_root, []
        names = sorted(image_files(root, unread.append))
        found = len(names)
        names = [name for name in names if is_held_out(name, self.held_out) == (self.split == 'held_out')]
        if not names:
            raise InputError(
                f'{root} has {found} images, but none for split={self.split!r} with held_out={self.held_out}: change '
                'held_out, or add images'
            )
        flaws = dict(zip(names, find_flaws([os.path.join(root, name) for name in names])))
        broken = {name: flaw for name, flaw in flaws.items() if flaw}
        some = ', '.join(f'{name} ({flaw})' for name, flaw in islice(broken.items(), 6))
        some += ', ...' if len(broken) > 6 else ''
        if len(broken) == len(names):
            raise InputError(f'{root}: none of {len(names)} images can be used: {some}')
        if broken:
            warn(printable(f'{root}: {len(broken)} of {len(names)} images cannot be used and are left out: {some}'))
        for error in unread:
            warn(printable(f'{root}: a folder cannot be read and is left out: {describe(error)}'))
        names = [name for name in names if name not in broken]
        if isinstance(self._indices, Sequence) and not all(-len(names) <= i < len(names) for i in self._indices):
            raise InputError(f'{root} has {len(names)} images that can be used, too few for indices {self._indices}')
        #: what a resumed training is compared in, see :func:`mmguard.runs.checkpoints.training_note`
        self.training_note = dict(data_root=root, names=_digest(*names).hex()[:16])
        return [dict(img_path=os.path.join(root, name), name=name) for name in names]

    def prepare_data(self, index: int | tuple[int, dict]) -> object:
        """One image after the pipeline.

        Raises:
            InputError: if it cannot be loaded.
        """
        index, view = index if isinstance(index, tuple) else (index, None)
        data = self.get_data_info(index)
        path = data['img_path']
        if view is not None:
            data['view'] = dict(view)
        data = self.pipeline(data)
        if data is None:
            raise InputError(f'{path} cannot be used: a transform returned None')
        return data

    def __getitem__(self, index: int | tuple[int, dict]) -> object:
        """One image after the pipeline, or the next one that can be loaded.

        Raises:
            InputError: if it and those after it cannot be loaded.
        """
        self.full_init()
        start, *view = index if isinstance(index, tuple) else (index,)
        count, errors = len(self), []
        for other in chain(range(start % count, count), range(start % count)):
            if self.broken[other]:
                continue
            try:
                return self.prepare_data((other, *view) if view else other)
            except InputError as error:
                self.broken[other] = True
                errors.append(error)
                warn(printable(f'{describe(error)}; the next image takes its place'))
            if len(errors) == TRIES:
                break
        if not errors:
            raise InputError(f'{self.data_root}: no image can be loaded, and the log says why')
        raise InputError(
            f'{self.data_root}: {len(errors)} images in a row cannot be loaded, the first being: {describe(errors[0])}'
        ) from errors[0]


def is_held_out(name: str, share: float) -> bool:
    """Whether an image is held out, decided by the path below the folder. A larger share holds out more beside it."""
    return int.from_bytes(_digest(name)[:8], 'big') < share * 2**64


def _digest(*names: str) -> bytes:
    text = '\0'.join(names).replace(os.sep, '/')
    return hashlib.sha1(os.fsencode(text), usedforsecurity=False).digest()


def find_flaws(paths: Sequence[str]) -> Iterator[str | None]:
    """Of each file, see :func:`find_flaw`."""
    Image.init()  # Threads would do it at the same time.
    parts = [paths[start : start + 256] for start in range(0, len(paths), 256)]
    with ThreadPoolExecutor(THREADS) as pool:
        yield from chain.from_iterable(pool.map(lambda part: list(map(find_flaw, part)), parts))


def find_flaw(path: str) -> str | None:
    """Why a file cannot be used as an image, as far as its first and last bytes show it; None if it can be used."""
    try:
        if not os.path.isfile(path):  # a link to nothing, a pipe
            return 'no file'
        if not os.path.getsize(path):
            return 'empty'
        check_image(path)
        with Image.open(path):
            return None
    except InputError:
        return 'cut short'
    except Image.DecompressionBombError:  # OpenCV reads larger images than Pillow.
        return None
    except Exception:  # Pillow raises several kinds, and does not know all that OpenCV reads.
        try:
            return 'no image' if imread(path) is None else None
        except Exception as error:
            return describe(error)


def printable(text: str) -> str:
    """A text that a log can write: names of files may have line breaks and bytes that are not UTF-8."""
    return ' '.join(text.split()).encode('utf-8', 'backslashreplace').decode()


@DATA_SAMPLERS.register_module()
class MultiScaleBatchSampler(Sampler):
    """Batches of one size each, of images of a :class:`UnlabelledImages`, as ``batch_sampler`` of a dataloader.

    The number of images of a batch falls as the area of its size grows, so that each batch has about as many pixels as
    ``batch_size`` images of the first size, and at least one image. Each epoch has the same number of batches of each
    size. Only their order is drawn. An epoch has each image at most once, and leaves out what fills no batch.

    Order and sizes depend only on the seed and the epoch of ``sampler``, so that a resumed training has the same, and
    all processes have the same size at the same step.

    Args:
        sampler: a ``DefaultSampler`` of MMEngine.
        batch_size: number of images per process in a batch of the first size. ``--auto-scale-lr`` reads it.
        sizes: for each size a dict with "size", an int or (height, width); "share" of the batches, by default 1, of
            which the sum is 1; and "crop_ratio_range", if it differs from that of :class:`ViewCrop`.

    Raises:
        ValueError: for an argument that cannot be used.
        InputError: if there are too few images for a batch.
    """

    def __init__(self, sampler: DefaultSampler, batch_size: int, sizes: Sequence[dict]) -> None:
        if not isinstance(sampler, DefaultSampler):
            raise ValueError(f'sampler must be a DefaultSampler, not {type(sampler).__name__}')
        if not isinstance(getattr(sampler.dataset, '_dataset', sampler.dataset), UnlabelledImages):
            raise ValueError(f'sampler must be of UnlabelledImages, not of {type(sampler.dataset).__name__}')
        check_whole('batch_size', batch_size)
        self.sampler, self.batch_size = sampler, batch_size
        self.views, shares = _views(sizes)
        areas = [np.prod(view['size']) for view in self.views]
        #: images in a batch of each size
        self.images = [max(1, int(batch_size * areas[0] / area)) for area in areas]
        # MMEngine repeats images to give all processes as many: those repeated come last.
        available = len(sampler.dataset) // sampler.world_size
        for batches in range(int(available / np.dot(shares, self.images)), 0, -1):
            #: batches of each size in an epoch
            self.batches = _apportioned(batches, shares)
            if np.dot(self.batches, self.images) <= available:
                break
        else:
            raise InputError(
                f'{len(sampler.dataset)} images for {sampler.world_size} processes are too few for an epoch of one '
                f'batch: lower batch_size from {batch_size}, or add images'
            )
        for view, number in zip(self.views, self.batches):
            if not number:
                warn(f'no batch of size {view["size"]} fits in an epoch of {len(self)} batches: raise its share')

    def __len__(self) -> int:
        return int(sum(self.batches))

    def __iter__(self) -> Iterator[list[tuple[int, dict]]]:
        order = np.repeat(np.arange(len(self.views)), self.batches)
        np.random.default_rng([self.sampler.seed, self.sampler.epoch]).shuffle(order)
        indices = iter(self.sampler)
        for number in order:
            yield [(index, self.views[number]) for index in islice(indices, self.images[number])]


def _views(sizes: Sequence[dict]) -> tuple[list[dict], list[float]]:
    """What each size means for its images, and its share of the batches."""
    if not isinstance(sizes, Sequence) or not sizes or not all(isinstance(each, dict) for each in sizes):
        raise ValueError(f'sizes must be a list of dicts with "size" and "share", not {sizes!r}')
    views, shares = [], []
    for number, given in enumerate(sizes):
        unknown = given.keys() - {'size', 'share', 'crop_ratio_range'}
        if unknown or 'size' not in given:
            what = f'has an unknown key {min(unknown)}' if unknown else 'has no size'
            raise ValueError(f'sizes[{number}] {what}: its keys are size, share and crop_ratio_range')
        size, share, ratios = given['size'], given.get('share', 1), given.get('crop_ratio_range')
        size = (size, size) if isinstance(size, Integral) else size
        if not _is_pair(size, Integral) or min(size) < 1:
            raise ValueError(f'sizes[{number}].size must be a whole number or (height, width), not {given["size"]!r}')
        if not isinstance(share, Real) or not 0 < share <= 1:
            raise ValueError(f'sizes[{number}].share must be in (0, 1], not {share!r}')
        view = dict(size=tuple(size))
        if ratios is not None:
            if not _is_pair(ratios, Real) or not 0 < ratios[0] <= ratios[1] <= 1:
                raise ValueError(f'sizes[{number}].crop_ratio_range must be two shares of the area, not {ratios!r}')
            view['crop_ratio_range'] = tuple(ratios)
        views.append(view)
        shares.append(share)
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f'sizes must have shares with a sum of 1, not {sum(shares):g}')
    return views, shares


def _is_pair(value: object, kind: type) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(isinstance(each, kind) for each in value)


def _apportioned(number: int, shares: Sequence[float]) -> np.ndarray:
    """A number in whole parts, by the largest remainders."""
    exact = number * np.asarray(shares)
    parts = np.floor(exact).astype(int)
    parts[np.argsort(parts - exact, kind='stable')[: number - parts.sum()]] += 1
    return parts
