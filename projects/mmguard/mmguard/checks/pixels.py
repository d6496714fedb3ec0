"""How the pixels of a model's images are prepared: by Normalize in a pipeline, and by the data preprocessor."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from mmengine.config import Config
from torch import nn

from ..errors import InputError
from ..weights import is_pretrained
from .config_types import listed, nested, type_name
from .config_values import dataset_configs, wraps_transforms


class Pixels(NamedTuple):
    """A model gets each channel of an image less ``mean``, divided by ``std``.

    Attributes:
        mean, std: a number per channel, in the model's order, or one for all; 0 and 1 if nothing normalises.
        is_rgb: whether images of three channels are turned from BGR, as they are read, into RGB.
        switches: the settings of what normalises that turn BGR into RGB. If there are two, images are normalised twice.
    """

    mean: np.ndarray
    std: np.ndarray
    is_rgb: bool
    switches: list[str]

    def channels(self, number: int) -> str | int:
        """The model's channels: RGB or BGR of three, grey of one. Others are in the order in which they are read."""
        return {1: 'grey', 3: 'RGB' if self.is_rgb else 'BGR'}.get(number, number)


def pixels_of(cfg: Config, preprocessor: nn.Module | None, split: str = 'test') -> Pixels:
    """How a model gets the images of a split of its config.

    Albu's transforms and those of torchvision are of other packages: what they change is not known here.

    Args:
        preprocessor: the model's data preprocessor, built.
    """
    steps = [
        (f'{place}.to_rgb', node['mean'], node['std'], node.get('to_rgb', True)) for place, node in _norms(cfg, split)
    ]
    mean, std = (getattr(preprocessor, key, None) for key in ('mean', 'std'))
    if mean is not None:
        switch = f'data_preprocessor.{"to_rgb" if hasattr(preprocessor, "to_rgb") else "bgr_to_rgb"}'
        steps.append((switch, mean.flatten().tolist(), std.flatten().tolist(), turns_to_rgb(preprocessor)))
    else:
        steps.append((None, 0.0, 1.0, turns_to_rgb(preprocessor)))
    mean, std, is_rgb = np.zeros(1), np.ones(1), False
    for _, offset, scale, swaps in steps:
        if swaps:
            is_rgb = not is_rgb
            mean, std = (one[::-1] if len(one) == 3 else one for one in (mean, std))
        mean, std = mean + std * offset, std * scale
    return Pixels(mean, std, is_rgb, [switch for switch, *_ in steps if switch])


def check_pixels(cfg: Config) -> None:
    """Compare how a training and its validation or test read and normalise images.

    Raises:
        InputError: if they have nothing in common, so that the model would get other pixels than it has learned from.
    """
    train, *others = (_settings(cfg, split) for split in ('train', 'val', 'test'))
    for split, other in zip(('val', 'test'), others):
        for kind in train if train['LoadImageFromFile'] and other['LoadImageFromFile'] else ():
            if train[kind] != other[kind] and not train[kind] & other[kind]:
                here, there = (' or '.join(sorted(found[kind])) or 'nowhere' for found in (train, other))
                raise InputError(
                    f'{kind} is {here} in train_dataloader, but {there} in {split}_dataloader: give both the same, as '
                    'the model gets other pixels otherwise than it has learned from'
                )


def other_normalisation(cfg: Config, model: nn.Module) -> Iterator[str]:
    """A sentence, if a backbone of timm starts from weights that learned from images of another mean, deviation or
    order of channels than those of the training. timm notes these as ``pretrained_cfg`` of its models."""
    model = getattr(model, 'module', model)
    backbone = getattr(model, 'backbone', None)
    parts = backbone.modules() if isinstance(backbone, nn.Module) else ()
    noted = next((note for part in parts if isinstance(note := getattr(part, 'pretrained_cfg', None), dict)), {})
    if not noted.get('mean') or getattr(backbone, 'in_channels', 3) != 3:
        return
    start = cfg.model.get('backbone') or {}
    if not start.get('pretrained') and not any(
        is_pretrained(node) for _, node in nested(start.get('init_cfg'), 'init_cfg')
    ):
        return
    mean, std = ([round(255 * value, 3) for value in noted[key]] for key in ('mean', 'std'))
    pixels = pixels_of(cfg, model.data_preprocessor, 'train')
    pairs = ((pixels.mean, mean), (pixels.std, std))
    if not pixels.is_rgb or not all(np.allclose(own, expected, rtol=0, atol=2) for own, expected in pairs):
        yield (
            f'the weights of {noted.get("architecture", "the backbone")} expect RGB images with mean={mean} and '
            f'std={std}, but the model gets {"RGB" if pixels.is_rgb else "BGR"} with mean='
            f'{pixels.mean.round(3).tolist()} and std={pixels.std.round(3).tolist()}: set them where images are '
            'normalised, in the data preprocessor or by Normalize'
        )


def turns_to_rgb(preprocessor: nn.Module | None) -> bool:
    """Whether a data preprocessor of MMDetection, MMSegmentation or MMPretrain turns BGR images into RGB."""
    return any(getattr(preprocessor, name, False) for name in ('_channel_conversion', 'channel_conversion', 'to_rgb'))


def _norms(cfg: Config, split: str) -> list[tuple[str, dict]]:
    """The steps that normalise the images of a split, in their order, with their places."""
    for where, node in dataset_configs(cfg, split):
        steps = listed(node.get('pipeline'), f'{where}.pipeline')
        norms = [(place, step) for place, step in steps if type_name(step.get('type')) == 'Normalize']
        if norms:
            return norms
    return []


def _settings(cfg: Config, split: str) -> dict[str, set[str]]:
    """The settings of a split that change the values of pixels: how files are read and what Normalize does."""
    found = dict(LoadImageFromFile=set(), Normalize=set())
    for where, node in dataset_configs(cfg, split):
        for _, step in nested(node.get('pipeline'), where, wraps_transforms):
            kind = type_name(step.get('type'))
            if kind == 'LoadImageFromFile':
                color = str(step.get('color_type', 'color')).removesuffix('_ignore_orientation')
                backend = ", imdecode_backend='tifffile'" * (step.get('imdecode_backend') == 'tifffile')
                found[kind].add(f"color_type='{color}'{backend}")
            elif kind == 'Normalize':
                mean, std = ([float(value) for value in step[key]] for key in ('mean', 'std'))
                found[kind].add(f'mean={mean}, std={std}, to_rgb={step.get("to_rgb", True)}')
    return found
