"""Weights for images of three channels in a model for other images: fitting the filters that see the image."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError

#: how filters are fitted, see :func:`fitted`
WAYS = ('zero', 'mean', 'repeat')


def other_channels(
    given: Mapping[str, Tensor],
    translated: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    stem: Iterable[str],
    channels: int,
) -> dict[str, int]:
    """The tensors of a checkpoint that fit a model but for the channels of its images.

    Args:
        given: the tensors of the checkpoint, under its names.
        translated: the same tensors, under the model's names.
        own: the model's.
        stem: the model's names of tensors that see the image, filters and norms.
        channels: of the model's images.

    Returns:
        name in the checkpoint -> channels of the images that it is for, the same for all; {} if there are none.
    """
    places = {translated[name].data_ptr(): own[name] for name in stem if name in translated and name in own}
    found: dict[str, int] = {}
    for name, value in given.items():
        mine = places.get(value.data_ptr())
        if mine is None or not value.is_floating_point() or not value.dim():
            continue
        number, rest = divmod(value.numel() * channels, mine.numel())
        same = value.dim() == 1 or value.shape[0] == mine.shape[0]
        if same and not rest and number not in (0, channels) and not value.shape[_dim(value)] % number:
            found[name] = number
    filters = {number for name, number in found.items() if given[name].dim() > 1}
    return {name: number for name, number in found.items() if {number} == filters}


def fitted(name: str, value: Tensor, number: int, channels: int, way: str) -> Tensor:
    """A filter (out, number, ...) or (out, k * number), or a vector (k * number), for another number of channels.

    - 'zero': the filters of further channels are zero, so that the first ``number`` channels have the maps of before.
    - 'mean': all channels have the mean of the filters, times number / channels.
    - 'repeat': the filters in turn, times number / channels; of a single channel their sum. So does timm.

    Vectors keep their size.

    Raises:
        CheckpointError: if there is no such start with zeros.
    """
    dim = _dim(value)
    parts = value.unflatten(dim, (-1, number))
    if way == 'zero':
        if channels < number or value.dim() == 1:
            why = f'the norm {name} is over all channels' if channels > number else 'there are fewer channels'
            raise CheckpointError(
                f"in_channels='zero' cannot fit weights for {number} channels to {channels}, since {why}: choose "
                "'mean' or 'repeat'"
            )
        shape = list(parts.shape)
        shape[dim + 1] = channels - number
        return torch.cat((parts, parts.new_zeros(shape)), dim + 1).flatten(dim, dim + 1)
    order = torch.arange(channels, device=value.device) % number
    parts = parts.double()
    if way == 'mean' or channels == 1:
        parts = parts.mean(dim + 1, keepdim=True).expand_as(parts)
    scale = number / channels if value.dim() > 1 else 1.0
    return (scale * parts.index_select(dim + 1, order)).flatten(dim, dim + 1).to(value.dtype)


def _dim(value: Tensor) -> int:
    """Where the channels are: last of all in a vector or in the patches of a linear layer."""
    return min(value.dim() - 1, 1)
