"""How far the first pass of a model that started from other weights is from that of their architecture."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..errors import CheckpointError, describe
from .translation import changed_with_images, differing_settings, misfits


def log_difference(
    model: nn.Module, state_dict: dict[str, Tensor], settings: Mapping[str, object] | None = None
) -> None:
    """Log by how many percent the maps of the first pass differ from those of the model's source, or why they were not
    compared.

    Both take the same image of 224 x 224 pixels, :func:`noise_image`, in evaluation mode. The percentage of a map
    is the norm of the difference divided by the norm of the source's map. Random generators keep their states.

    A model may have token mixers that run only on a GPU, or for other sizes. So an error of its forward pass is
    logged; training raises it again if it is a mistake. Errors of the source are raised.

    Args:
        model: a backbone that has just loaded them.
        state_dict: the weights that it started from.
        settings: what their file notes.

    Raises:
        CheckpointError: if the weights were trained with other settings than those that the model shares with
            the source.
    """
    own = next(model.parameters())
    if own.is_meta:
        return
    about = f'{type(model).__name__}, warm start: the first pass'
    try:
        with torch.device('meta'):
            source = build_source(model, state_dict)
        if source is None:
            return
        translation = source.from_release(state_dict)
    except CheckpointError as error:
        print_log(f'{about} was not compared: {error}', 'current')
        return
    problem = _other_training(model, source, settings)
    if not problem and (problems := misfits(translation, source.state_dict())):
        listed = '; '.join(' '.join((kind, *names[:3])) for kind, names in problems.items())
        problem = f'{type(source).__name__} does not take the weights: {listed}'
    if problem:
        print_log(f'{about} was not compared: {problem}', 'current')
        return
    image = noise_image(model.in_channels, 224).to(own)
    with torch.no_grad():
        try:
            with evaluating(model):
                maps = model(image)
        except Exception as error:
            print_log(f'{about} was not compared, since it failed on {own.device}: {describe(error)}', 'current')
            return
        with torch.random.fork_rng(devices=[]):
            source = build_source(model, state_dict)
        for name, value in source.state_dict().items():
            if name in translation.tensors:
                value.copy_(translation.tensors[name])
        pairs = zip(maps, source.to(own).eval()(image), strict=True)
        shares = [100 * float((a - b).norm() / b.norm()) for a, b in pairs]
    percentages = ', '.join(f'{share:.1f} %' for share in shares)
    print_log(f'{about} differs from that of {_described(model, state_dict)} by {percentages}, map by map', 'current')


def _described(model: nn.Module, names: Iterable[str]) -> str:
    """What weights are of: ``SOURCE``, unless only another of the model's ``LAYOUTS`` is found in their names."""
    source, layouts = model.published('SOURCE'), model.published('LAYOUTS', {})
    found = [each for each, pattern in layouts.items() if any(re.match(pattern, name) for name in names)]
    return source if source in found or not found else found[0]


def _other_training(model: nn.Module, source: nn.Module, settings: Mapping[str, object] | None) -> str:
    """How the training of weights differs from the source that was built for them, as a sentence; '' if it does not.

    Raises:
        CheckpointError: see :func:`log_difference`.
    """
    changed = changed_with_images(settings, source.settings)
    different = {
        name: text for name, text in differing_settings(settings, source.settings).items() if name not in changed
    }
    trained = f'the weights were trained with {", ".join(different.values())}' if different else ''
    if any(model.settings.get(name) == source.settings.get(name) for name in different):
        raise CheckpointError(
            f'{trained}, which their tensors do not show: give {type(model).__name__} the settings of the training'
        )
    return trained


def build_source(model: nn.Module, state_dict: dict[str, Tensor]) -> nn.Module | None:
    """The model that weights were trained as, which ``model`` started from; None if there is none to compare with.

    It has no weights yet. See :class:`mmattn.weights.StrictModule`.

    Raises:
        CheckpointError: saying why it cannot be compared.
    """
    source_config = model.published('source_config')
    config = source_config and source_config(state_dict, model)
    return config and MODELS.build(dict(config, init_cfg=None))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode. At the end, each of its modules gets its own mode back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def noise_image(channels: int, side: int, count: int = 1) -> Tensor:
    """Images (count, channels, side, side) of variance 1, always the same.

    They are sums of Gaussian noise at all scales, with the same variance at each scale, as in photographs.
    """
    generator = torch.Generator().manual_seed(0)
    sides = [-(-side // 2**i) for i in range(side.bit_length())]
    octaves = [torch.randn(count, channels, n, n, generator=generator) for n in sides]
    image = sum(F.interpolate(octave, size=(side, side), mode='bilinear') for octave in octaves)
    return image / image.std()
