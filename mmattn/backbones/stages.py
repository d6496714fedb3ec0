"""Frames of stages whose maps are halved from one to the next: what Swin Transformer and NAT have in common."""

import re
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ..arguments import check_heads
from ..layers import Block
from ..weights import take_out
from .base import Backbone


class Stage(nn.Module):
    """The blocks of one resolution, and the layer after them that halves the map."""

    def __init__(self, blocks: list[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample


class Stages(Backbone):
    """Base class of frames whose stages are the :class:`Stage` modules of ``stage_list``, after ``patch_embed`` and
    ``drop``. Stage i has the norm ``norm{i}`` if its map is returned."""

    #: name of the list of stages, as released
    stage_list = 'layers'
    #: the plain attention of all stages
    plain: dict

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        arch = super().resolve_arch(arch)
        per_stage = {key: value for key, value in arch.items() if isinstance(value, Sequence)}
        if len({len(value) for value in per_stage.values()}) > 1:
            raise ValueError(f'arch: {" and ".join(per_stage)} must be of one length, not {per_stage}')
        for i, heads in enumerate(arch['num_heads']):
            check_heads(arch['embed_dim'] * 2**i, heads, 'arch: num_heads')
        return arch

    def stage_modules(self) -> list[list[nn.Module]]:
        norms = {i: [getattr(self, self.output_norm(i))] for i in self.out_indices}
        stages = enumerate(getattr(self, self.stage_list))
        return [[self.patch_embed, self.drop], *([stage, *norms.get(i, [])] for i, stage in stages)]

    def output_norm(self, stage: int) -> str:
        return f'norm{stage}' if stage in self.out_indices else ''

    def place_outputs(self, tensors: dict[str, Tensor]) -> tuple[list[str], list[str]]:
        """Leave out the head and the stages that are not built, and place the norms of a release, in ``tensors``.

        A released classifier has one norm, ``norm``. A backbone that returns only the last stage takes it. Other
        backbones leave it out, as they do with the only norm of a classifier trained here, and their norms start
        untrained. A released detector has the norms of all its outputs. A distilled backbone may lack those of its
        first stages, which start untrained.

        Returns:
            the names of the tensors that are left out, and those of the backbone's that start untrained.
        """
        last = self.num_stages - 1
        norms = [f'norm{i}.' for i in range(self.num_stages)]
        given = [i for i, norm in enumerate(norms) if any(name.startswith(norm) for name in tensors)]
        left_out, fresh = [norm for i, norm in enumerate(norms) if i not in self.out_indices], []
        if self.out_indices == (last,):
            for kind in ('weight', 'bias'):
                if f'norm.{kind}' in tensors:
                    tensors.setdefault(f'norm{last}.{kind}', tensors.pop(f'norm.{kind}'))
        elif given in ([], [last]):
            left_out, fresh = norms, self.out_indices
        else:
            fresh = [i for i in self.out_indices if i < given[0]]
        left_out += [f'{self.stage_list}.{i}.' for i in range(self.num_built, self.num_stages)]
        left_out += ['norm.', 'head.', f'{self.stage_list}.{self.num_built - 1}.downsample.']
        return take_out(tensors, *left_out), [f'norm{i}.{kind}' for i in fresh for kind in ('weight', 'bias')]

    def named_blocks(self) -> dict[str, Block]:
        """The blocks by the names under which they stand."""
        return {
            f'{self.stage_list}.{i}.blocks.{j}': block
            for i, stage in enumerate(getattr(self, self.stage_list))
            for j, block in enumerate(stage.blocks)
        }

    def start_attention(self, tensors: dict[str, Tensor]) -> list[str]:
        """Replace the tensors of another attention by those that the own mechanisms make of them, by their method
        ``warm_start``.

        Returns:
            the names of those that have no place.

        Raises:
            KeyError: naming a tensor that should be there.
            CheckpointError: naming a tensor of another shape that has to be rearranged.
        """
        start, dropped = {}, []
        for prefix, block in ((f'{name}.attn.', block) for name, block in self.named_blocks().items()):
            if hasattr(block.attn, 'warm_start'):
                own = block.attn.warm_start(tensors, prefix)
                start.update((prefix + name, value) for name, value in own.items())
            dropped += take_out(tensors, prefix)
        tensors.update(start)
        for name in self.state_dict():
            if not re.match(r'norm\d\.', name) and '.attn.' not in name:
                tensors[name]  # raises the error
        return dropped

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check_images(x)
        x = self.drop(self.patch_embed(x))
        for stage in getattr(self, self.stage_list):
            for block in stage.blocks:
                x = self.run(block, x)
            yield x
            if stage.downsample is not None:
                x = stage.downsample(x)
