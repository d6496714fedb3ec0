"""Images of a test: predictions beside annotations."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.dataset import BaseDataset
from mmengine.dist import get_dist_info
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from ..arguments import check_whole
from ..checks.datasets import inner_datasets
from ..checks.pixels import pixels_of, turns_to_rgb
from ..errors import InputError
from ..outputs import check_output
from ..runs.checkpoints import unwrapped
from .drawing import beside, colors_of, draw_sample, write_image
from .predict import class_names


class DrawingHook(Hook):
    """Draws images of a test: the annotations, if the test pipeline loads them, and beside them the predictions.

    Args:
        folder: to write to.
        number: of images, spread evenly over the dataset; all, if it has fewer.

    Raises:
        ValueError: if ``number`` is not a whole number of at least 1.
        InputError: if the folder cannot be written to; while testing, if an image has nothing to draw.
    """

    def __init__(self, folder: Path, number: int) -> None:
        check_whole('number', number)
        check_output(folder / 'drawn.jpg')
        self.folder, self.number, self.seen = folder, number, 0

    def before_test(self, runner: Runner) -> None:
        dataset = runner.test_dataloader.dataset
        meta = dataset.metainfo
        self.images = len(dataset)
        self.classes = [str(name) for name in meta.get('classes') or class_names(runner.model)[0]]
        inner = list(inner_datasets(dataset))  # of several, each may load images in its own way
        self.loaders = [_loader(each) for each in inner] or [LoadImageFromFile()]
        self.ends = np.cumsum([len(each) for each in inner])
        self.colors = colors_of(meta.get('palette'), len(self.classes))

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None, outputs: Sequence | None = None
    ) -> None:
        rank, processes = get_dist_info()
        for position, sample in enumerate(outputs):
            index = self.seen * processes + rank  # MMEngine deals the images of a dataset to its processes in turn
            self.seen += 1
            if index * self.number % self.images < self.number and index < self.images:
                image = self._read(runner, sample, data_batch, position, index)
                truth, prediction = (
                    draw_sample(image, sample, kind, self.classes, self.colors) for kind in ('gt', 'pred')
                )
                pictures = dict(truth=truth, prediction=prediction)
                pictures = {caption: picture for caption, picture in pictures.items() if picture is not None}
                if not pictures:
                    raise InputError(
                        f'{type(unwrapped(runner.model)).__name__} predicts neither boxes nor label maps nor classes, '
                        'so its images cannot be drawn: leave out --show-dir'
                    )
                name = Path(sample.get('img_path') or 'image').stem[:50]  # a longer name may not fit behind the number
                write_image(self.folder / f'{index:06d}_{name}', beside(pictures))

    def _read(self, runner: Runner, sample: BaseDataElement, data_batch: dict, position: int, index: int) -> np.ndarray:
        """The image of a sample, BGR or grey: from its file, or as loaded where there is none, as in CIFAR."""
        if sample.get('img_path'):
            number = int(np.searchsorted(self.ends, index, 'right'))  # beyond the end for images that are repeated
            load = self.loaders[min(number, len(self.loaders) - 1)]
            return load(dict(img_path=sample.img_path))['img']
        image, pixels = data_batch['inputs'][position].permute(1, 2, 0).cpu().numpy(), pixels_of(runner.cfg, None)
        if pixels.switches:  # The pipeline normalises.
            image = (image * pixels.std + pixels.mean).round()
        is_bgr = turns_to_rgb(unwrapped(runner.model).data_preprocessor)
        return np.ascontiguousarray(image if is_bgr else image[..., ::-1])


def _loader(dataset: BaseDataset) -> LoadImageFromFile:
    """What reads the images of a dataset: the LoadImageFromFile of its pipeline, or the default if it has none."""
    for transform in dataset.pipeline.transforms:
        if isinstance(transform, partial):  # of a CheckedPipeline
            transform = transform.args[0]
        if isinstance(transform, LoadImageFromFile):
            return transform
    return LoadImageFromFile()
