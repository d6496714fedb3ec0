"""Comparing the tensors of a checkpoint with those of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Translation:
    """What a checkpoint has for a model, under the model's own names.

    Attributes:
        tensors: by the model's names. A tensor whose name the model does not have is a misfit.
        dropped: names in the checkpoint that have no place in the model, by design.
        fresh: names in the model that the checkpoint lacks, by design. They keep their initial values.
    """

    tensors: dict[str, Tensor]
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)


def take_out(tensors: dict[str, Tensor], *prefixes: str) -> list[str]:
    """Remove the tensors whose names begin with one of the prefixes; returns their names."""
    names = [name for name in tensors if name.startswith(prefixes)]
    for name in names:
        del tensors[name]
    return names


def misfits(translation: Translation, own: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """The tensors that keep a checkpoint from filling a model completely.

    Args:
        translation: of the checkpoint.
        own: state dict of the model. Counters of batch norms may be missing in the checkpoint, as in old ones.

    Returns:
        names by kind: 'missing', 'of another shape' (with both shapes), 'not used'; kinds without names are left out.
    """
    tensors = translation.tensors
    excused = {*tensors, *translation.fresh}
    found = {
        'missing': [name for name in own if name not in excused and not name.endswith('num_batches_tracked')],
        'of another shape': [
            f'{name} {tuple(value.shape)} instead of {tuple(own[name].shape)}'
            for name, value in tensors.items()
            if name in own and value.shape != own[name].shape
        ],
        'not used': [name for name in tensors if name not in own],
    }
    return {kind: names for kind, names in found.items() if names}


def first_names(names: Iterable[str], count: int = 6) -> str:
    """The first names of a list and the number of the others, for a sentence."""
    names = list(names)
    return ', '.join(names[:count]) + (f' and {len(names) - count} more' if len(names) > count else '')
