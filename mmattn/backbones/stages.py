"""Frames of stages whose maps are halved from one to the next: what Swin Transformer and NAT have in common."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ..arguments import check_heads
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

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check_images(x)
        x = self.drop(self.patch_embed(x))
        for stage in getattr(self, self.stage_list):
            for block in stage.blocks:
                x = self.run(block, x)
            yield x
            if stage.downsample is not None:
                x = stage.downsample(x)
