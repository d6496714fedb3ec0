"""What weights of the frames in stages.py have in common."""

import re

from torch import Tensor, nn

from ..layers import Block
from ..layers.starts import start_token_mixers
from ..weights import take_out


def place_outputs(tensors: dict[str, Tensor], model: nn.Module) -> tuple[list[str], list[str]]:
    """Leave out the head and the stages that are not built, and place the norms of a release, in ``tensors``.

    A released classifier has one norm, ``norm``. A backbone that returns only the last stage takes it. Other backbones
    leave it out, as they do with the only norm of a classifier trained here, and their norms start untrained. A
    released detector has the norms of all its outputs. A distilled backbone may lack those of its first stages, which
    start untrained.

    Returns:
        the names of the tensors that are left out, and those of the model's that start untrained.
    """
    last, stages = model.num_stages - 1, model.stage_list
    norms = [f'norm{i}.' for i in range(model.num_stages)]
    given = [i for i, norm in enumerate(norms) if any(name.startswith(norm) for name in tensors)]
    left_out, fresh = [norm for i, norm in enumerate(norms) if i not in model.out_indices], []
    if model.out_indices == (last,):
        for kind in ('weight', 'bias'):
            if f'norm.{kind}' in tensors:
                tensors.setdefault(f'norm{last}.{kind}', tensors.pop(f'norm.{kind}'))
    elif given in ([], [last]):
        left_out, fresh = norms, model.out_indices
    else:
        fresh = [i for i in model.out_indices if i < given[0]]
    left_out += [f'{stages}.{i}.' for i in range(model.num_built, model.num_stages)]
    left_out += ['norm.', 'head.', f'{stages}.{model.num_built - 1}.downsample.']
    return take_out(tensors, *left_out), [f'norm{i}.{kind}' for i in fresh for kind in ('weight', 'bias')]


def blocks_of(model: nn.Module) -> dict[str, Block]:
    """The blocks by the names under which they stand."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Block)}


def start_attention(tensors: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Replace the tensors of another attention by those that the model's token mixers make of them.

    Returns:
        the names of those that have no place.

    Raises:
        KeyError: naming a tensor that should be there.
        CheckpointError: naming a tensor of another shape that has to be rearranged.
    """
    starts = {f'{name}.attn.': getattr(block.attn, 'warm_start', None) for name, block in blocks_of(model).items()}
    dropped = start_token_mixers(tensors, starts)
    for name in model.state_dict():
        if not re.match(r'norm\d\.', name) and '.attn.' not in name:
            tensors[name]  # raises the error
    return dropped
