"""What the backbones have in common: variants, outputs, frozen stages, checkpointing, strict weights."""

import contextlib
from collections.abc import Iterator, Sequence

from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ops.tracing import is_tracing
from ..weights import StrictWeights, load_pretrained


class Backbone(StrictWeights, BaseModule):
    """Base of the backbones.

    A subclass names its variants in ``arch_zoo``, sets ``norm_eval`` if it has that argument, lists its modules in
    ``stage_modules``, passes every block through ``run``, and says in the class attributes of
    :class:`mmattn.weights.StrictWeights` how a release differs from it.

    Args:
        out_indices: stages whose maps are returned, ascending, counting from 0.
        num_stages: stages there are to choose from.
        frozen_stages: the stem (0) and the first so many stages are frozen: no gradient, always in eval mode, their
            output norms included. -1 freezes nothing.
        with_cp: recompute blocks in the backward pass instead of keeping their activations.
        init_cfg: MMEngine's initialisation config; ``dict(type='Pretrained', checkpoint=...)`` takes a release.

    Raises:
        ValueError: for an argument that cannot be, naming it.
    """

    #: batch norm always uses, and never updates, its running statistics
    norm_eval = False

    def __init__(
        self,
        out_indices: Sequence[int],
        num_stages: int,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        out_indices = tuple(out_indices)
        if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(num_stages))):
            raise ValueError(
                f'out_indices must be ascending stage numbers from 0 to {num_stages - 1}, not {out_indices}'
            )
        if frozen_stages not in range(-1, num_stages + 1):
            raise ValueError(f'frozen_stages must be from -1 to {num_stages}, not {frozen_stages!r}')
        self.out_indices = out_indices
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        """The architecture that a name of ``arch_zoo`` or a complete dict stands for.

        Raises:
            ValueError: if the name is unknown, or the dict lacks a key or has one too many.
        """
        argument = f'{cls.arch_argument} of {cls.__name__}'
        if not isinstance(arch, dict):
            if arch not in list(cls.arch_zoo):
                raise ValueError(
                    f'{argument} must be one of {", ".join(map(str, cls.arch_zoo))} or a dict, not {arch!r}'
                )
            return dict(cls.arch_zoo[arch])
        wanted = set(next(iter(cls.arch_zoo.values())))
        if set(arch) != wanted:
            problems = [
                f'{kind} {", ".join(sorted(keys))}'
                for kind, keys in (('lacks', wanted - set(arch)), ('has unknown', set(arch) - wanted))
                if keys
            ]
            raise ValueError(f'{argument} {" and ".join(problems)}; its keys are {", ".join(sorted(wanted))}')
        return dict(arch)

    def stage_modules(self) -> list[list[nn.Module]]:
        """The modules of the stem, then of each stage that is built, its output norm included."""
        raise NotImplementedError

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        """``block(x)``, recomputed in the backward pass if ``with_cp``."""
        if not (self.with_cp and self.training):
            return block(x)
        norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        if not norms or is_tracing():  # which records what changes buffers once, and knows no contexts
            return checkpoint(block, x, use_reentrant=False)
        return checkpoint(
            block, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _unlearning(norms))
        )

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        for modules in self.stage_modules()[: self.frozen_stages + 1]:
            for module in modules:
                module.eval().requires_grad_(False)
        return self

    def init_weights(self) -> None:
        """Initialise as ``init_cfg`` says; a Pretrained entry comes last and is strict."""
        if self.is_init:
            return
        init_cfg = self.init_cfg
        entries = [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []
        pretrained = [entry for entry in entries if entry['type'] == 'Pretrained']
        self.init_cfg = [entry for entry in entries if entry not in pretrained]
        super().init_weights()
        self.init_cfg = init_cfg
        for entry in pretrained:
            load_pretrained(self, **{key: value for key, value in entry.items() if key != 'type'})


@contextlib.contextmanager
def _unlearning(norms: list[nn.Module]) -> Iterator[None]:
    """Batch norms in training keep their running statistics, which a recomputation would update a second time."""
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum, norm.num_batches_tracked = momentum, count


def to_map(x: Tensor) -> Tensor:
    """Tokens (B, H, W, C) as the map (B, C, H, W) that heads expect.

    Contiguous: mmcv's RoIAlign reads a channels-last map as if it were not, and returns garbage without a word.
    """
    return x.permute(0, 3, 1, 2).contiguous()


def drop_path_schedule(depths: Sequence[int], rate: float) -> list[list[float]]:
    """Per stage and block, rates that rise linearly from 0 to ``rate`` over all blocks.

    Raises:
        ValueError: if rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be in [0, 1), not {rate}')
    rates = iter(rate * i / max(sum(depths) - 1, 1) for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
