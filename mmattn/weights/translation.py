"""Comparing the tensors of a checkpoint with those of a model."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from mmengine.logging import print_log
from torch import Tensor

from ..errors import CheckpointError

#: dtypes of weights; others are quantised in one way or another
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: what settings and lists in them are made of
PLAIN = (int, float, str, type(None))
#: among settings, the name of the one that is meant to change with the size of the images
CHANGING = 'changes_with_images'


@dataclass
class Translation:
    """What a checkpoint has for a model, under the model's own names.

    Attributes:
        tensors: by the model's names. A tensor whose name the model does not have is a misfit.
        dropped: names in the checkpoint that have no place in the model, by design.
        fresh: names in the model that the checkpoint lacks, by design. They keep their values.
        initial: computes other values for these, by name, from the model's state dict with the loaded weights.
    """

    tensors: dict[str, Tensor]
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    initial: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None


def renamed(
    tensors: Mapping[str, Tensor], patterns: Mapping[str, str | Callable[[re.Match], str]]
) -> dict[str, Tensor]:
    """Tensors under other names: each pattern that is found in a name is replaced, as ``re.sub`` does it."""
    found = {}
    for name, value in tensors.items():
        for pattern, new in patterns.items():
            name = re.sub(pattern, new, name)
        found[name] = value
    return found


def take_out(tensors: dict[str, Tensor], *prefixes: str) -> list[str]:
    """Remove the tensors whose names begin with one of the prefixes; returns their names."""
    names = [name for name in tensors if name.startswith(prefixes)]
    for name in names:
        del tensors[name]
    return names


def take(tensors: dict[str, Tensor], name: str, *shape: int) -> Tensor:
    """Remove a tensor that will be rearranged, and return it.

    Raises:
        KeyError: if there is no tensor of that name.
        CheckpointError: if it has another shape.
    """
    if tensors[name].shape != shape:
        raise CheckpointError(f'a tensor is of another shape: {name} {tuple(tensors[name].shape)} instead of {shape}')
    return tensors.pop(name)


def fit_tables(
    tensors: dict[str, Tensor],
    own: dict[str, Tensor],
    names: Iterable[str],
    fitted: Callable[[Tensor, torch.Size], Tensor | None],
) -> None:
    """Resize tables of positions among the ``tensors`` of a checkpoint to their shapes among the model's ``own``.

    ``fitted`` takes a table in float32 and the shape, and returns the resized table. It returns None for a tensor that
    is not such a table: that one stays as it is, and is refused later. The log names the tables.
    """
    for name in names:
        if name in tensors and name in own and tensors[name].shape != own[name].shape:
            table, shape = tensors[name], own[name].shape
            resized = fitted(table.float(), shape)
            if resized is not None:
                print_log(f'{name} resized from {tuple(table.shape)} to {tuple(shape)}', logger='current')
                tensors[name] = resized.to(table.dtype)


def misfits(translation: Translation, own: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """The tensors that keep a checkpoint from filling a model completely.

    Counters of batch norms may be missing in the checkpoint, as in old ones.

    Returns:
        names by kind: 'missing', 'of another shape' (with both shapes), 'of another kind' (with what they are),
        'not used'; kinds without names are left out.
    """
    tensors = translation.tensors
    excused = {*tensors, *translation.fresh}
    shared = [(name, value, own[name]) for name, value in tensors.items() if name in own]
    found = {
        'missing': [name for name in own if name not in excused and not name.endswith('num_batches_tracked')],
        'of another shape': [
            f'{name} {tuple(a.shape)} instead of {tuple(b.shape)}' for name, a, b in shared if a.shape != b.shape
        ],
        'of another kind': [
            f'{name} ({problem})' for name, a, b in shared if a.shape == b.shape and (problem := unusable(a, b))
        ],
        'not used': [name for name in tensors if name not in own],
    }
    return {kind: names for kind, names in found.items() if names}


def unusable(value: object, own: Tensor) -> str:
    """Why a value of a checkpoint cannot be copied into a model's own tensor without a change of its numbers.

    Returns:
        what the value is, to follow "is", as in "int8 for float32"; '' if it can be copied. Rounding to fewer bits is
        no change. Shapes are not compared.
    """
    problem = odd_form(value)
    if problem:
        return problem
    names = ' for '.join(str(tensor.dtype).removeprefix('torch.') for tensor in (value, own))
    if own.is_floating_point():
        if value.dtype not in FLOATS:
            return names
        large = value.dtype != own.dtype and bool((value.to(own.dtype).isinf() & value.isfinite()).any())
        return f'{names}, with values beyond its range' if large else ''
    kinds = {(each.is_floating_point(), each.is_complex(), each.dtype == torch.bool) for each in (value, own)}
    if value.dtype == own.dtype or len(kinds) == 1 and torch.equal(value.to(own.dtype).to(value.dtype), value):
        return ''
    return names


def odd_form(value: object) -> str:
    """How the form of a value differs from that of an ordinary tensor, to follow "is"; '' if it does not."""
    if not isinstance(value, Tensor):
        return f'of type {type(value).__name__}, not a tensor'
    if value.is_quantized:
        return 'quantised'
    if value.is_meta:
        return 'a tensor without values, of the device "meta"'
    if value.layout != torch.strided or value.is_nested:
        return 'sparse or nested'
    if value.is_floating_point() and value.dtype not in FLOATS:
        return str(value.dtype).removeprefix('torch.')
    if value.dim() > 64:
        return f'of {value.dim()} dimensions'
    if value.numel() > 2**28 and value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f'a few numbers, repeated {value.numel()} times, which may not fit in memory'
    return ''


def check_floats(tensors: Mapping[str, Tensor]) -> None:
    """Raise a CheckpointError if weights or biases are not floats. Rearranging them later may hide their dtype."""
    for name, value in tensors.items():
        if name.endswith(('weight', 'bias')) and value.dtype not in FLOATS:
            raise CheckpointError(f'{name} has the dtype {value.dtype}, but weights must be floats')


def compare_settings(saved: object, own: Mapping[str, object], ignored: Iterable[str] = ()) -> None:
    """Compare the settings of a backbone that a checkpoint was written with, which its tensors do not show.

    Both are ``type`` and settings by name. In the file, anything but a dict of the same type is ignored.

    Args:
        ignored: names of settings that may differ.

    Raises:
        CheckpointError: naming the settings that differ, as :func:`differing_settings` finds them.
    """
    if not isinstance(saved, Mapping) or _plain(saved.get('type')) != own['type']:
        return
    different = [text for name, text in differing_settings(saved, own).items() if name not in ignored]
    if different:
        raise CheckpointError(
            f'the weights were trained with {", ".join(different)}, which their tensors do not show: give '
            f'{own["type"]} the settings of the training'
        )


def differing_settings(saved: object, own: Mapping[str, object]) -> dict[str, str]:
    """Where the settings that a file notes differ from those of a model, which may be of another class.

    A setting is compared if both have it. A token mixer notes some of its settings only if they have a value. So one
    that only the file or only the model has differs, too, if both have the same token mixer at its place. ``CHANGING``
    is no setting.

    Returns:
        a part of a sentence by the name of the setting, as "num_heads=6 instead of 3".
    """
    if not isinstance(saved, Mapping):
        return {}

    def differ(name: str) -> bool:
        place, _, setting = name.rpartition('.')
        if setting == CHANGING:
            return False
        if name in saved and name in own or place in own and _plain(saved.get(place)) == own[place]:
            return _plain(saved.get(name)) != _plain(own.get(name))
        return False

    names = [name for name in {**own, **saved} if isinstance(name, str) and differ(name)]
    return {name: f'{name}={repr(_plain(saved.get(name)))[:200]} instead of {own.get(name)!r}' for name in names}


def changed_with_images(saved: object, own: Mapping[str, object]) -> dict[str, str]:
    """The part of :func:`differing_settings` that ``own`` names under ``CHANGING``, at the place of each token
    mixer."""

    def may_change(name: str) -> bool:
        place, dot, setting = name.rpartition('.')
        return own.get(f'{place}{dot}{CHANGING}') == setting

    return {name: text for name, text in differing_settings(saved, own).items() if may_change(name)}


def is_setting(value: object) -> bool:
    """Whether a checkpoint can keep a value among settings, to be read without running code, and compared."""
    return all(isinstance(part, PLAIN) for part in (value if isinstance(value, (list, tuple)) else [value]))


def _plain(value: object) -> object:
    """A setting in a form that can be compared. A file may hold anything, also a list within itself."""
    if not is_setting(value):
        return type(value)
    return list(value) if isinstance(value, tuple) else value


def listed(problems: Mapping[str, list[str]], count: int = 6) -> str:
    """What :func:`misfits` returns, as the end of a sentence: "2 missing: a, b; 1 not used: c"."""
    return '; '.join(f'{len(names)} {kind}: {first_names(names, count)}' for kind, names in problems.items())


def first_names(names: Iterable[str], count: int = 6) -> str:
    """The first names of a list and the number of the others, for a sentence."""
    names = [' '.join(name.split())[:200] for name in names]
    return ', '.join(names[:count]) + (f' and {len(names) - count} more' if len(names) > count else '')
