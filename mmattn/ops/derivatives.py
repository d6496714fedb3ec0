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


def by_torch(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The backward pass of an operator that computes the gradients of ``function``, from torch's operators: for
    second derivatives, where the operator has no other backend. Third derivatives are refused.

    Returns:
        a function of the gradients of the operator's results, and of its arguments: the gradient of the result of
        ``function`` and the arguments of that.
    """

    def backward(*given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) // 2
        arguments = [x.detach().requires_grad_() for x in given[count:]]
        with torch.enable_grad():
            out = function(*arguments[1:])
            first = torch.autograd.grad(out, arguments[1:], arguments[0], create_graph=True)
            return torch.autograd.grad(first, arguments, given[:count], allow_unused=True, materialize_grads=True)

    return once(backward)


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
