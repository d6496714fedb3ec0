import contextlib
from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from .tracing import is_tracing


def recompute(block: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
    """``block(*inputs)``, whose activations are computed again in the backward pass instead of being kept in memory.

    Batch norms in training update their running statistics once, not a second time when they are recomputed. If
    ``torch.func.functional_call`` has lent weights to the block for the forward pass, they are used again.
    """
    if is_tracing():  # torch.compile updates statistics once and keeps weights by itself, and does not take contexts
        return checkpoint(block, *inputs, use_reentrant=False)
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    contexts = dict(context_fn=lambda: (contextlib.nullcontext(), _StatisticsKept(norms))) if norms else {}
    return checkpoint(_call, block, dict(block.named_parameters()), *inputs, use_reentrant=False, **contexts)


def _call(block: nn.Module, parameters: dict[str, Tensor], *inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
    """``block(*inputs)`` with the parameters that it had in the forward pass."""
    lent = any(parameters[name] is not parameter for name, parameter in block.named_parameters())
    return functional_call(block, parameters, inputs) if lent else block(*inputs)


class _StatisticsKept:
    """A context that is entered once in each backward pass, of which a graph may have several."""

    def __init__(self, norms: list[nn.Module]) -> None:
        self.norms = norms

    def __enter__(self) -> None:
        self.kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *_: object) -> None:
        for norm, momentum, count in self.kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
