"""From an image to what student and teacher see of it: transforms, and the preprocessor of their batches."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from numbers import Real

import numpy as np
import torch
from mmcv.transforms import BaseTransform, Compose
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import MODELS, TRANSFORMS
from mmpretrain.datasets.transforms import PackInputs, RandomResizedCrop
from torch import Tensor

from mmattn.arguments import check_whole
from mmattn.errors import InputError


@TRANSFORMS.register_module()
class ViewCrop(RandomResizedCrop):
    """MMPretrain's ``RandomResizedCrop``, with the size of the batch if :class:`MultiScaleBatchSampler` gives one.

    ``size`` and ``crop_ratio_range`` of "view" replace ``scale`` and ``crop_ratio_range``. The aspect ratio of a crop,
    width / height, is that of the size times a number of ``aspect_ratio_range``. So crops for 800 x 1344 are wide, and
    all are stretched alike.

    Arguments are those of ``RandomResizedCrop``.
    """

    def transform(self, results: dict) -> dict:
        view = results.get('view', {})
        crop = copy(self)
        crop.scale = view.get('size', self.scale)
        crop.crop_ratio_range = view.get('crop_ratio_range', self.crop_ratio_range)
        height, width = crop.scale
        crop.aspect_ratio_range = tuple(ratio * width / height for ratio in self.aspect_ratio_range)
        return super(ViewCrop, crop).transform(results)

    def rand_crop_params(self, img: np.ndarray) -> tuple[int, int, int, int]:
        y, x, height, width = super().rand_crop_params(img)
        return y, x, max(height, 1), max(width, 1)  # of an image that is one pixel wide or high


@TRANSFORMS.register_module()
class FixedViews(BaseTransform):
    """Transforms that make one of a fixed number of views of an image, so that a teacher's features can be kept.

    The random numbers that they draw depend on the name of the image and the number of the view, which is drawn.
    The generators of Python, NumPy and torch are left as they were after this draw. Views of several sizes count for
    each size. The image must be loaded before.

    Args:
        transforms: configs of transforms.
        views: number of views of an image, in each size.

    Raises:
        ValueError: for an impossible number of views.
    """

    def __init__(self, transforms: list[dict], views: int) -> None:
        check_whole('views', views)
        self.transforms, self.views = Compose(transforms).transforms, views

    def transform(self, results: dict) -> dict | None:
        number = int(np.random.randint(self.views))
        with _generators_of(results.get('name') or results['img_path'], number):
            results = Compose(self.transforms)(results)
        if results is not None:
            results['fixed_view'] = number
        return results


@contextmanager
def _generators_of(*parts: object) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch, and leave them as they were. Those of GPUs are not touched."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = int.from_bytes(hashlib.sha1(repr(parts).encode(), usedforsecurity=False).digest()[:4], 'big')
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@TRANSFORMS.register_module()
class StudentColors(BaseTransform):
    """Transforms of the student's image only: the teacher sees the image as it was before, "teacher_img".

    They may change colours, and must not move pixels: the student's features are compared with those that the teacher
    has in the same places.

    Args:
        transforms: configs of transforms.

    Raises:
        ValueError: if they change the size of an image.
    """

    def __init__(self, transforms: list[dict]) -> None:
        self.transforms = Compose(transforms).transforms

    def transform(self, results: dict) -> dict | None:
        teacher = results['img'].copy()
        results = Compose(self.transforms)(results)
        if results is None:
            return None
        if results['img'].shape != teacher.shape:
            raise ValueError(
                f'transforms of StudentColors changed an image of shape {teacher.shape} to {results["img"].shape}: '
                'transforms other than of colours must come before StudentColors'
            )
        results['teacher_img'] = teacher
        return results


@TRANSFORMS.register_module()
class PackViews(PackInputs):
    """Pack an image for a ``FeatureDistiller``.

    It makes "inputs", uint8 (3, H, W), BGR; behind :class:`StudentColors` "teacher_inputs" of the same form; and
    "data_samples", a ``DataSample`` of MMPretrain, with "img_path". Behind :class:`FixedViews`, it also has "view_key",
    a hash of shape and pixels of what the teacher sees.

    Raises:
        InputError: for an image that is not of three channels of bytes.
    """

    def __init__(self) -> None:
        super().__init__()

    def transform(self, results: dict) -> dict:
        packed = super().transform(results)
        if 'teacher_img' in results:
            packed['teacher_inputs'] = self.format_input(results['teacher_img'])
        seen_by_teacher = packed.get('teacher_inputs', packed['inputs'])
        for pixels in (packed['inputs'], seen_by_teacher):
            if pixels.dtype != torch.uint8 or pixels.dim() != 3 or len(pixels) != 3:
                raise InputError(
                    f'{results["img_path"]} has become {tuple(pixels.shape)} of {pixels.dtype}, but PackViews takes '
                    "three channels of uint8: load images with color_type='color', and end with such transforms"
                )
        if 'fixed_view' in results:
            digest = hashlib.sha1(repr(tuple(seen_by_teacher.shape)).encode(), usedforsecurity=False)
            digest.update(seen_by_teacher.numpy())
            packed['data_samples'].set_metainfo(dict(view_key=digest.hexdigest()))
        return packed


@MODELS.register_module()
class ViewPreprocessor(ImgDataPreprocessor):
    """Batches for a ``FeatureDistiller``, of images of one size, on the device of the model.

    It makes "inputs", (B, 3, H, W), RGB, less ``mean`` and divided by ``std``; "teacher_inputs", (B, 3, H, W), RGB,
    from 0 to 255, because each teacher has its own mean and deviation; and "data_samples". Both are float32. Without
    "teacher_inputs" in a batch, the teacher sees what the student sees.

    Args:
        mean, std: of the student's pixels, RGB, from 0 to 255. The defaults are those of ImageNet.
        bgr_to_rgb: whether images come as BGR, as they are loaded by default.
        non_blocking: whether the copy to a GPU may go on while the model runs.

    Raises:
        InputError: for images of different sizes, and a mean or deviation on another scale, as that from 0 to 1.
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        bgr_to_rgb: bool = True,
        non_blocking: bool = False,
    ) -> None:
        check_normalisation('mean', mean, 255)
        check_normalisation('std', std, 255)
        super().__init__(mean, std, bgr_to_rgb=bgr_to_rgb, non_blocking=non_blocking)

    def forward(self, data: dict, training: bool = False) -> dict:
        data = self.cast_data(data)
        images = self._stacked(data['inputs'])
        teacher = data.get('teacher_inputs')
        return dict(
            inputs=(images - self.mean) / self.std,
            teacher_inputs=images if teacher is None else self._stacked(teacher),
            data_samples=data.get('data_samples'),
        )

    def _stacked(self, images: Sequence[Tensor] | Tensor) -> Tensor:
        """Images (3, H, W), or a batch of them, as one float tensor in the model's order of channels."""
        sizes = sorted({tuple(image.shape[-2:]) for image in images})
        if len(sizes) > 1:
            (h1, w1), (h2, w2), *_ = sizes
            raise InputError(
                f'a batch has images of {h1} x {w1} and {h2} x {w2} pixels: its pipeline must crop or resize all to '
                'one size, as ViewCrop does, or batch_size must be 1'
            )
        images = images if isinstance(images, Tensor) else torch.stack(list(images))
        return (images[:, [2, 1, 0]] if self._channel_conversion else images).float()


def check_normalisation(name: str, values: object, white: float) -> None:
    """Check the mean, or the standard deviation, of RGB images whose pixels are from 0 to ``white``.

    Raises:
        InputError: if it is not three numbers on this scale. A deviation below ``white`` / 256 is less than a shade.
    """
    least = white / 256 if name.startswith('std') else 0
    if not (
        isinstance(values, Sequence)
        and len(values) == 3
        and all(isinstance(value, Real) and least <= value <= white for value in values)
    ):
        raise InputError(
            f'{name} must be three numbers from {least:.2g} to {white}, for pixels from 0 to {white}, not {values!r}'
        )
