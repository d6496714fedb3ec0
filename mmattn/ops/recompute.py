import contextlib
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .tracing import is_compiling, is_transforming


def recompute(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    *inputs: Tensor | None,
    modules: Sequence[nn.Module] | None = None,
    random: bool = True,
    compiled: bool = True,
) -> Tensor | tuple[Tensor, ...]:
    """``function(*inputs)``, whose activations are computed again in the backward pass instead of being kept in memory.

    That computation stops where all of them are known. An operator of torch notes its inputs before it computes. So if
    a convolution comes last, it is not computed again. An ``autograd.Function`` notes them afterwards.

    The modules are as they were: with the weights that ``torch.func.functional_call`` may have lent them, and in
    training or evaluation mode. Batch norms in training do not update their running statistics a second time.

    Args:
        modules: those that the function uses; None: the function is a module.
        random: whether the function draws random numbers, as drop path does.
        compiled: whether this holds in torch.compile, too, which otherwise decides by itself what it keeps.
    """
    if not torch.is_grad_enabled() or is_compiling() and not compiled:
        return function(*inputs)
    if any(x is not None and x.is_meta for x in inputs):  # torch 2.1 fails
        return function(*inputs)
    if is_compiling():  # torch.compile updates statistics once by itself, and does not take contexts
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=random)
    if is_transforming() or torch.jit.is_tracing():  # torch.func refuses; a traced graph could not be stored
        return function(*inputs)
    before = _AsBefore([function] if modules is None else modules)
    return checkpoint(
        function,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=random,
        context_fn=lambda: (contextlib.nullcontext(), before),
    )


#: One thread at a time computes again. Another one would take what this one has set for the state of the modules, and
#: restore it at the end.
LOCK = threading.RLock()


class _AsBefore:
    """A context in which modules are as they were when it was made, but norms do not update running statistics.

    It is entered once in each backward pass, of which a graph may have several.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.then = [(part, _state(part)) for module in modules for part in module.modules()]

    def __enter__(self) -> None:
        LOCK.acquire()
        self.now = [(part, {name: vars(part)[name] for name in state}) for part, state in self.then]
        for part, state in self.then:
            vars(part).update(state)

    def __exit__(self, *_: object) -> None:
        for part, state in self.now:
            vars(part).update(state)
        LOCK.release()


def _state(part: nn.Module) -> dict[str, object]:
    """What a recomputation sets in a module, without the modules in it."""
    buffers = dict(part._buffers)
    state = dict(_parameters=dict(part._parameters), _buffers=buffers, training=part.training)
    if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
        state['momentum'] = 0.0
        if part.num_batches_tracked is not None:  # a copy, because SyncBatchNorm adds 1 to it
            buffers['num_batches_tracked'] = part.num_batches_tracked.clone()
    return state
