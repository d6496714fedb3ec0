"""A ResNet with rivals of global self-attention, as table 3 of GSA compares them (https://arxiv.org/abs/2010.03019)."""

from collections.abc import Callable, Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.arguments import check_flags, hidden_channels
from mmattn.backbones import GSAResNet
from mmattn.backbones.gsa_resnet import Bottleneck
from mmattn.layers.token_mixer import mix
from mmattn.ops.any_size import average_pool


class RivalBottleneck(Bottleneck):
    """A block of :class:`RivalResNet`.

    Args:
        after: from (B, H, W, out_channels) to the same shape, after the block; None: nothing.
        pool_first: with attention, pool before it.
        arguments: of a block of GSA-ResNet.
    """

    def __init__(self, *, after: nn.Module | None, pool_first: bool, **arguments: object) -> None:
        super().__init__(**arguments)
        self.pool_first, self.attn_after = pool_first, after

    def token_mixers(self) -> list[nn.Module]:
        return [*super().token_mixers(), *([] if self.attn_after is None else [self.attn_after])]

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x if self.attn_after is None else mix(self.attn_after, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def mixed(self, x: Tensor) -> Tensor:
        return super().mixed(average_pool(x) if self.stride > 1 and self.pool_first else x)

    def pooled(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2) if self.pool_first else super().pooled(x)


@MODELS.register_module()
class RivalResNet(GSAResNet):
    """GSA-ResNet with other token mixers in other places.

    Args:
        depth: as of GSA-ResNet.
        pool_first: where attention halves the map, pool before it, not after it, so that it works on the smaller map.
        insert_after: blocks after which ``attention``, a config, is inserted, on all channels between blocks, as pairs
            (group, block), counted from 0. The token mixer should add its input to its result, as non-local blocks do.
            They are beside ``gsa_stages``, which is usually () then.
        width_ratio: channels of the inner layers, times this, rounded down. Those between blocks stay.
        attention: as of GSA-ResNet.
        kwargs: further arguments of GSA-ResNet.

    Raises:
        ValueError: if an argument is impossible.
    """

    shared_with_source = (*GSAResNet.shared_with_source, 'width_ratio')

    def __init__(
        self,
        depth: int | str | dict = 50,
        *,
        pool_first: bool = False,
        insert_after: Sequence[tuple[int, int]] = (),
        width_ratio: float = 1.0,
        attention: dict | Sequence | None = None,
        **kwargs: object,
    ) -> None:
        check_flags(pool_first=pool_first)
        self.inserted = check_places(insert_after, self.resolve_arch(depth)['depths'], attention)
        self.pool_first, self.width_ratio = pool_first, width_ratio
        super().__init__(depth, attention=attention, **kwargs)
        if 'num_heads' in self.settings:  # without attention, a plain ResNet serves every kind
            self.settings['pool_first'] = pool_first

    def inner_widths(self, arch: dict) -> list[int]:
        return [hidden_channels(width, self.width_ratio, 'width_ratio') for width in super().inner_widths(arch)]

    def build_block(
        self,
        stage: int,
        number: int,
        build: Callable[[int, int], nn.Module],
        attends: bool,
        stride: int,
        **arguments: object,
    ) -> RivalBottleneck:
        reached = 4 * 2**stage // (1 if self.pool_first else stride)
        return RivalBottleneck(
            attn=build(arguments['width'], reached) if attends else None,
            after=build(arguments['out_channels'], 4 * 2**stage) if (stage, number) in self.inserted else None,
            pool_first=self.pool_first,
            stride=stride,
            **arguments,
        )


def check_places(insert_after: object, depths: Sequence[int], attention: dict | None) -> set[tuple[int, int]]:
    """The pairs of ``insert_after``.

    Raises:
        ValueError: if it is no list of pairs (group, block), or there is no such block, or no token mixer to insert.
    """
    blocks = [(i, j) for i, depth in enumerate(depths) for j in range(depth)]
    given = insert_after if isinstance(insert_after, (list, tuple)) else [None]
    places = [tuple(place) if isinstance(place, list) else place for place in given]
    if not all(place in blocks for place in places):
        raise ValueError(
            f'insert_after must be pairs (group, block), counted from 0, of {list(depths)} blocks, not {insert_after!r}'
        )
    if places and not attention:
        raise ValueError('insert_after needs attention, a token mixer that adds its input to its result')
    return set(places)
