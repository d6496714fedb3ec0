"""Stages of blocks, and the frame of stages whose maps are halved, which Swin Transformer and NAT have in common."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from ..arguments import check_heads, check_rates
from ..layers import Block, build_token_mixer, token_mixer_settings
from .base import Backbone


def drop_path_schedule(depths: Sequence[int], rate: float) -> list[list[float]]:
    """Rates of stochastic depth per stage and block, which rise linearly from 0 to ``rate`` over all blocks.

    Raises:
        ValueError: if rate is not in [0, 1).
    """
    check_rates(drop_path_rate=rate)
    rates = iter(rate * i / max(sum(depths) - 1, 1) for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]


def stage_blocks(
    backbone: Backbone,
    stage: int,
    in_turn: Sequence[dict],
    drop_path: Sequence[float],
    mlp: Callable[[], nn.Module],
    *,
    eps: float = 1e-5,
    layer_scale: float | None = None,
    **offered: object,
) -> list[Block]:
    """Build the blocks of a stage, with the token mixers of ``in_turn`` in turn, and note their settings.

    Args:
        drop_path: of each block, its probability of dropping a branch.
        mlp: makes the MLP of a block.
        eps, layer_scale: see :class:`mmattn.layers.Block`.
        offered: see :func:`mmattn.layers.build_token_mixer`. Errors are the same.
    """
    count, dim, blocks = len(in_turn), backbone.channels[stage], []
    for j, rate in enumerate(drop_path):
        attn = build_token_mixer(in_turn[j % count], block=j // count, dim=dim, **offered)
        blocks.append(Block(dim, attn, mlp(), rate, eps, layer_scale))
    backbone.settings |= token_mixer_settings(in_turn, (block.attn for block in blocks), f'attention[{stage}]')
    return blocks


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
