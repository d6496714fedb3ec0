"""Token labels: maps of the classes that another classifier sees in each part of an image.

They are those of TokenLabeling, https://github.com/zihangJiang/TokenLabeling, and ReLabel,
https://github.com/naver-ai/relabel_imagenet: a file FOLDER/NAME.pt for the image FOLDER/NAME.JPEG, with a tensor
(2, k, h, w). At each of h x w places of the whole image, it has the k largest logits and their class numbers. Published
are k = 5 and h = w = 18, in float16.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform, Compose, RandomChoice, RandomFlip
from mmcv.transforms.utils import cache_random_params
from mmengine.registry import TRANSFORMS
from mmpretrain.datasets.transforms import RandAugment, RandomResizedCrop
from mmpretrain.datasets.transforms.auto_augment import BaseAugTransform, Rotate, Shear, Translate
from torch import Tensor
from torchvision.ops import roi_align

from ..errors import CheckpointError, InputError
from ..weights import odd_form, read_file


def label_file(root: str | Path, image: str | Path) -> Path:
    """The label map of an image: its folder and name below ``root``, with the suffix .pt."""
    image = Path(image)
    return Path(root, image.parent.name, image.stem + '.pt')


def read_label_map(path: Path) -> Tensor:
    """The label map in a file, (2, k, h, w), float32. No code in the file is run.

    Raises:
        InputError: naming the file, if it is missing, cannot be read or has no label map.
    """
    if not path.exists():
        raise InputError(
            f'there is no label map {path}: set label_root of LoadTokenLabels, or make it by tools/make_token_labels.py'
        )
    try:
        found = read_file(path)
    except CheckpointError as error:
        raise InputError(
            f'{path} cannot be read as a label map: it is cut short or damaged, or has more than a tensor (code in a '
            'file is not run)'
        ) from error
    return checked_label_map(found, str(path))


def checked_label_map(found: object, name: str) -> Tensor:
    """A label map, (2, k, h, w), as float32.

    Raises:
        InputError: with the name, if it is none: a tensor of another form, values that are not finite, or a class twice
            at one place.
    """
    form = odd_form(found)
    if not form and (found.dim() != 4 or len(found) != 2 or not found.numel() or found.is_complex()):
        form = f'a tensor {tuple(found.shape)} of {found.dtype}'
    if form:
        raise InputError(f'{name} is {form}, but a label map is a tensor (2, k, h, w) of logits and class numbers')
    found = found.detach().float()
    numbers = found[1].sort(0).values
    if (
        not found.isfinite().all()
        or (numbers < 0).any()
        or (numbers % 1 != 0).any()
        or (numbers.diff(dim=0) == 0).any()
    ):
        raise InputError(
            f'{name} has logits that are not finite, or class numbers that are not different whole numbers from 0'
        )
    return found


@TRANSFORMS.register_module()
class LoadTokenLabels(BaseTransform):
    """Load the label map of an image, after its ``img_path``: "label_map" becomes a tensor (2, k, h, w).

    Args:
        label_root: folder with a folder of .pt files for each folder of images.

    Raises:
        InputError: naming the file, if it cannot be used.
    """

    def __init__(self, label_root: str) -> None:
        self.label_root = label_root

    def transform(self, results: dict) -> dict:
        results['label_map'] = read_label_map(label_file(self.label_root, results['img_path']))
        return results


@TRANSFORMS.register_module()
class MoveTokenLabels(BaseTransform):
    """Apply random transforms to an image, and move its label map along.

    Flips, and rotation, shear and translation of ``RandAugment``, move "label_map" as they move the image: each place
    takes the nearest label, and logits 0 outside of the image. All are composed to one motion first.

    Args:
        transforms: configs of ``RandomFlip``, ``RandAugment`` and its operations, and of ``RandomChoice`` between lists
            of these.

    Raises:
        ValueError: for another transform, or after :class:`CropTokenLabels`.
    """

    def __init__(self, transforms: list[dict]) -> None:
        self.transforms = Compose(transforms).transforms
        for step in _all(self.transforms):
            if not isinstance(step, (RandomFlip, BaseAugTransform)):
                raise ValueError(f'MoveTokenLabels cannot move labels as {type(step).__name__} moves an image')

    def transform(self, results: dict) -> dict:
        if 'label_box' in results:
            raise ValueError('MoveTokenLabels must come before CropTokenLabels')
        height, width = results['img'].shape[:2]
        unit = np.array([[1 / width, 0, 0.5 / width], [0, 1 / height, 0.5 / height], [0, 0, 1]])
        motion = np.eye(3)
        for step in _drawn(self.transforms):
            with cache_random_params(step):  # What the step draws can be asked for again.
                results = step(results)
                motion = _motion(step, results, height, width) @ motion
        results['label_map'] = _moved(results['label_map'], unit @ motion @ np.linalg.inv(unit))
        return results


@TRANSFORMS.register_module()
class CropTokenLabels(RandomResizedCrop):
    """MMPretrain's ``RandomResizedCrop``, which also sets "label_box" to the crop: x1, y1, x2, y2 from 0 to 1.

    It leaves "label_map" as it is: :func:`token_targets` cuts the labels of a whole batch. Arguments are those of
    ``RandomResizedCrop``.
    """

    def rand_crop_params(self, img: np.ndarray) -> tuple[int, int, int, int]:
        self.crop = super().rand_crop_params(img)
        return self.crop

    def transform(self, results: dict) -> dict:
        height, width = results['img'].shape[:2]
        results = super().transform(results)
        y, x, h, w = self.crop
        results['label_box'] = torch.tensor([x / width, y / height, (x + w) / width, (y + h) / height])
        return results


def _all(steps: Iterable) -> Iterator[BaseTransform]:
    for step in steps:
        yield from _all(step.transforms) if isinstance(step, (Compose, RandomChoice, RandAugment)) else [step]


def _drawn(steps: Iterable) -> Iterator[BaseTransform]:
    """The transforms to apply, in order, after the draws of RandomChoice and RandAugment."""
    for step in steps:
        if isinstance(step, RandomChoice):
            yield from _drawn(step.transforms[step.random_pipeline_index()])
        elif isinstance(step, RandAugment):
            yield from _drawn(step.transforms[i] for i in step.random_policy_indices())
        else:
            yield step


def _motion(step: BaseTransform, results: dict, height: int, width: int) -> np.ndarray:
    """How a transform has moved pixels (x, y, 1), as a 3 x 3 matrix."""
    matrix = np.eye(3)
    if isinstance(step, RandomFlip):
        for axis, name in enumerate(('horizontal', 'vertical')):
            if results['flip_direction'] in (name, 'diagonal'):
                matrix[axis, axis], matrix[axis, 2] = -1, (width, height)[axis] - 1
        return matrix
    if not isinstance(step, (Rotate, Shear, Translate)) or step.random_disable():
        return matrix
    amount = step.angle if isinstance(step, Rotate) else step.magnitude
    amount = step.random_negative(step.random_magnitude() if amount is None else amount)
    if isinstance(step, Rotate):
        center = step.center or ((width - 1) / 2, (height - 1) / 2)
        matrix[:2] = cv2.getRotationMatrix2D(center, -amount, step.scale)
    else:
        axis = 0 if step.direction == 'horizontal' else 1
        matrix[axis, 1 - axis if isinstance(step, Shear) else 2] = amount
        if isinstance(step, Translate):
            matrix[axis, 2] *= (width, height)[axis]
    return matrix


def _moved(label_map: Tensor, motion: np.ndarray) -> Tensor:
    """A label map (2, k, h, w) after a motion of the image, whose x and y are from 0 to 1."""
    if np.array_equal(motion, np.eye(3)):
        return label_map
    centred = np.array([[2, 0, -1], [0, 2, -1], [0, 0, 1]])  # grid_sample's coordinates, from -1 to 1
    source = torch.from_numpy(centred @ np.linalg.inv(motion) @ np.linalg.inv(centred))[None, :2].float()
    places = label_map.flatten(0, 1)[None]
    grid = F.affine_grid(source, places.shape, align_corners=False)
    return F.grid_sample(places, grid, 'nearest', align_corners=False)[0].view_as(label_map)


def token_targets(maps: Tensor, boxes: Tensor, num_classes: int, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Targets of the class token and of all other tokens, from the label maps of a batch.

    Classes that a map does not have get logit 0, as in the released code. RoIAlign then cuts the crop out of the map.
    The released code gives it rows as x and columns as y, so that labels are of the transposed crop; here they are of
    the crop itself.

    Args:
        maps: (B, 2, k, h, w), logits and class numbers.
        boxes: the crops, (B, 4), x1, y1, x2, y2 from 0 to 1.
        num_classes: K.
        size: rows H and columns W of tokens.

    Returns:
        probabilities (B, K) and (B, K, H, W).
    """
    B, _, _, h, w = maps.shape
    logits, numbers = maps.float().unbind(1)
    dense = logits.new_zeros(B, num_classes, h, w).scatter_(1, numbers.long(), logits)
    boxes = list((boxes * boxes.new_tensor([w, h, w, h])).split(1))
    of_class, of_tokens = (roi_align(dense, boxes, side, aligned=True).softmax(1) for side in ((1, 1), size))
    return of_class.flatten(1), of_tokens
