from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import InputError


def once(gradients: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Wrap a function that computes gradients, so that differentiating them again raises an InputError.

    torch's ``once_differentiable`` gives a constant where the gradient of the result is one, and is passed over by
    ``torch.autograd.grad`` to inputs that are reached by other ways. Both give wrong numbers.
    """

    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        return gradients(*arguments)

    return type(
        'Once', (torch.autograd.Function,), dict(forward=staticmethod(forward), backward=staticmethod(refuse))
    ).apply


def refuse(ctx, *_: Tensor) -> None:
    """The backward pass of a function that computes gradients.

    Raises:
        InputError: always.
    """
    raise InputError(
        'compiled code of mmattn.ops has no second derivatives (create_graph=True): choose another backend of the '
        "operator, such as 'reference'"
    )


def apply(function: type[torch.autograd.Function], *args: object) -> Tensor | tuple[Tensor | None, ...]:
    """``function.apply``, without its time if no gradient is wanted."""
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return function.apply(*args)
    return function.forward(_Forgetful(), *args)


class _Forgetful:
    """The context of a forward pass without a backward pass."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass
