import logging
import math
import re

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor, nn

from .checkpoint import CheckpointError, read_checkpoint

#: names that give another model away, for the guess in an error
FOREIGN_LAYOUTS = {
    'an ELSA-Swin': r'layers\.\d+\.blocks\.\d+\.attn\.ghost_head',
    "a Swin Transformer in Microsoft's or timm's layout": r'layers\.\d+\.blocks\.\d+\.attn\.relative_position',
    "a Swin Transformer in MMDetection's layout": r'stages\.\d+\.blocks\.\d+\.attn\.w_msa\.',
    'a Shunted Transformer': r'block\d\.\d+\.attn\.(sr1|local_conv)',
    'a Pyramid Vision Transformer': r'block\d\.\d+\.attn\.sr\.',
    'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.|blocks\.\d+\.attn\.pre_proj\.',
    'a ViT or DeiT': r'blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight',
    'a GSA-ResNet': r'layer\d\.\d+\.attn\.rel_',
    'a ResNet': r'layer\d\.\d+\.conv\d\.',
}


class StrictWeights(nn.Module):
    """A model whose weights fit to the last tensor or not at all, however they are loaded: by ``init_cfg``, by
    ``load_from`` as part of a whole model, or by ``load_state_dict``, unless that is called with ``strict=False``.

    A subclass says in the attributes below how a released checkpoint differs from its own names and shapes.
    """

    #: name -> architecture; ``cls(arch=name)`` builds it, and a dict given as ``arch`` has the keys of an entry
    arch_zoo: dict[str | int, dict] = {}
    #: what the argument that takes it is called
    arch_argument = 'arch'
    #: released tensors that have no place here (a classifier, buffers that are computed)
    release_only = re.compile(r'(?!)')
    #: tensors that a classifier's release lacks altogether (output norms, replaced layers): kept as initialised
    backbone_only = re.compile(r'(?!)')
    #: tables of relative positions that are interpolated when their size differs
    resizable = re.compile(r'(?!)')
    #: family of ``FOREIGN_LAYOUTS`` whose weights can start the model in part, if ``warm_start`` is defined
    warm_start_from: str | None = None
    #: tensors of such a checkpoint that have no place here
    warm_start_drops = re.compile(r'(?!)')
    _strict = True

    def released_names(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rename the tensors of a release to the model's; the release's names unless overridden."""
        return state_dict

    def resize_table(self, table: Tensor, shape: torch.Size) -> Tensor:
        """A ``resizable`` table at another shape; as it is if that cannot be.

        (heads, a * a) to (heads, b * b), bicubic, unless overridden.
        """
        old, new = math.isqrt(table.shape[-1]), math.isqrt(shape[-1])
        if table.dim() != 2 or len(shape) != 2 or table.shape[0] != shape[0] or old**2 != table.shape[1]:
            return table
        grid = table.float().view(1, -1, old, old)
        return F.interpolate(grid, (new, new), mode='bicubic', align_corners=False).view(shape).to(table.dtype)

    def warm_start(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Own tensors, by name, that weights of ``warm_start_from`` have; what is taken is removed from ``state_dict``.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
        """
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, **kwargs):
        self._strict = strict
        try:
            return super().load_state_dict(state_dict, strict, **kwargs)
        finally:
            self._strict = True

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        # Every loader of whole models passes here, too, torch's and MMEngine's; neither tells whether it is strict.
        _fit(self, state_dict, prefix, self._strict)
        super()._load_from_state_dict(state_dict, prefix, *args)


def load_pretrained(
    model: StrictWeights,
    checkpoint: str,
    prefix: str | None = None,
    strict: bool = True,
    map_location: str = 'cpu',
    warm_start: bool = False,
) -> None:
    """Fill a model from a released checkpoint, as ``init_cfg=dict(type='Pretrained', checkpoint=...)`` asks.

    Args:
        model: the model to fill, in place.
        checkpoint: see :func:`read_checkpoint`.
        prefix: see :func:`read_checkpoint`.
        strict: whether a tensor that is missing, of another shape or not used is an error.
        map_location: accepted for the sake of MMEngine's configs; tensors are read on the CPU.
        warm_start: the checkpoint is of the architecture that the model can start from in part: take what corresponds,
            and log what starts afresh and what was left.

    Raises:
        CheckpointError: if the file cannot be read, or does not fit the model to the last tensor; of a warm start, if a
            tensor that the model should take is missing or of another shape, or one is left that it does not know.
    """
    state_dict, source = read_checkpoint(checkpoint, prefix)
    print_log(f'{type(model).__name__}: loading {checkpoint} ({source})', logger='current')
    try:
        if warm_start:
            state_dict = _warm_start(model, state_dict)
        model.load_state_dict(state_dict, strict=strict)
    except CheckpointError as error:
        raise CheckpointError(f'{checkpoint}: {error}') from None


def _warm_start(model: StrictWeights, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's state dict as it is, with what weights of another architecture have for it.

    Raises:
        CheckpointError: if they are not of the architecture that the model can start from.
    """
    name = type(model).__name__
    if model.warm_start_from is None:
        raise CheckpointError(f'{name} has no warm start from other architectures: leave warm_start out')
    left = dict(given)
    try:
        start = model.warm_start(left)
    except KeyError as error:
        raise CheckpointError(
            f'{name} can start from {model.warm_start_from}, whose {error} these weights lack: '
            f'{_guess(model, given, "")}'
        ) from None
    unknown = [tensor for tensor in left if not model.warm_start_drops.match(tensor)]
    if unknown:
        raise CheckpointError(
            f'{name} can start from {model.warm_start_from}, but knows no counterpart of '
            f'{len(unknown)} tensors of these weights: {_some(unknown)}'
        )
    own = model.state_dict()
    for what, names in (
        ('taken', start),
        ('starts afresh', [tensor for tensor in own if tensor not in start]),
        ('has no counterpart here', left),
    ):
        print_log(f'{name}, warm start: {what}: {", ".join(names) or "nothing"}', logger='current')
    return {**own, **start}


def _fit(model: StrictWeights, state_dict: dict[str, Tensor], prefix: str, strict: bool) -> None:
    """Turn the model's part of a state dict (names that begin with ``prefix``), in place, into its own tensors.

    Raises:
        CheckpointError: if strict, naming the tensors that are missing, misshapen or not used, and a likely cause.
    """
    given = {name.removeprefix(prefix): state_dict.pop(name) for name in list(state_dict) if name.startswith(prefix)}
    given = model.released_names(given)
    own = model.state_dict()

    dropped = [name for name in given if name not in own and model.release_only.match(name)]
    # A release that has some of the output norms has all of them.
    kept = (
        []
        if any(map(model.backbone_only.match, given))
        else [name for name in own if name not in given and model.backbone_only.match(name)]
    )
    tensors = {name: value for name, value in given.items() if name not in dropped}
    for name, value in tensors.items():
        if name in own and value.shape != own[name].shape and model.resizable.match(name):
            tensors[name] = model.resize_table(value, own[name].shape)
            if tensors[name] is not value:
                print_log(f'{name} resized from {tuple(value.shape)} to {tuple(own[name].shape)}', logger='current')

    missing = [
        name for name in own if name not in tensors and name not in kept and not name.endswith('num_batches_tracked')
    ]
    misshapen = [name for name in tensors if name in own and tensors[name].shape != own[name].shape]
    unused = [name for name in tensors if name not in own]
    if missing or misshapen or unused:
        shapes = [f'{name} {tuple(tensors[name].shape)} instead of {tuple(own[name].shape)}' for name in misshapen]
        problems = '; '.join(
            f'{len(names)} {what}: {_some(names)}'
            for what, names in (('missing', missing), ('of another shape', shapes), ('not used', unused))
            if names
        )
        message = f'the weights do not fit {type(model).__name__}: {_guess(model, given, prefix)}. Tensors {problems}'
        if strict:
            raise CheckpointError(message)
        print_log(message, logger='current', level=logging.WARNING)
        tensors = {name: value for name, value in tensors.items() if name not in misshapen}
    for what, names in (('has no counterpart here', dropped), ('kept as initialised', kept)):
        if names:
            print_log(f'{type(model).__name__}: {what}: {", ".join(names)}', logger='current')
    tensors.update((name, own[name]) for name in kept)
    state_dict.update((prefix + name, value) for name, value in tensors.items())


def _some(names: list[str], count: int = 6) -> str:
    return ', '.join(names[:count]) + (f' and {len(names) - count} more' if len(names) > count else '')


def _guess(model: StrictWeights, given: dict[str, Tensor], prefix: str) -> str:
    """The likely cause of a misfit."""
    if not given:
        return (
            f'the checkpoint has no tensor under "{prefix}"; ImageNet weights are given by '
            f'init_cfg=dict(type="Pretrained", checkpoint=...) of the backbone, not by load_from'
        )
    shapes = {name: value.shape for name, value in given.items()}
    for arch in model.arch_zoo:
        with torch.device('meta'):
            candidate = type(model)(**{model.arch_argument: arch})
        own = {name: value.shape for name, value in candidate.state_dict().items()}
        needed = {name: shape for name, shape in own.items() if not candidate.backbone_only.match(name)}
        used = {name: shape for name, shape in shapes.items() if not candidate.release_only.match(name)}
        if needed.items() <= used.items() <= own.items():
            name = f'{type(model).__name__}({model.arch_argument}={arch!r})'
            return f'they are those of {name} with its default arguments'
    for family, pattern in FOREIGN_LAYOUTS.items():
        if any(re.match(pattern, name) for name in given):
            own = any(re.match(pattern, name) for name in model.state_dict())
            hint = (
                ', which warm_start=True beside the checkpoint would take in part'
                if family == model.warm_start_from
                else ''
            )
            return 'they are of another architecture of the same family' if own else f'they look like {family}{hint}'
    return 'they look like another model'
