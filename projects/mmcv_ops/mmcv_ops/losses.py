"""Focal losses of Lin et al., "Focal Loss for Dense Object Detection"."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .dtypes import wide

#: the smallest argument of a logarithm
TINY = torch.finfo(torch.float32).tiny
#: elements that are computed at once
LIMIT = 2**20


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the loss of each element to ``output``.

    Args:
        input: logits, (N, classes).
        target: class of each row, (N,); a number that is no class is the background.
        weight: factor of each class, (classes,), or empty.
        output: (N, classes).
    """
    for some, p, q, positive in _rows(input, target):
        loss = torch.where(
            positive,
            -alpha * q.pow(gamma) * p.clamp(min=TINY).log(),
            (alpha - 1) * p.pow(gamma) * q.clamp(min=TINY).log(),
        )
        output[some] = _weighted(loss, target[some], weight)


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each element's loss; for the arguments see ``sigmoid_focal_loss_forward``."""
    for some, p, q, positive in _rows(input, target):
        grad = torch.where(
            positive,
            -alpha * q.pow(gamma) * (q - gamma * p * p.clamp(min=TINY).log()),
            (alpha - 1) * p.pow(gamma) * (gamma * q * q.clamp(min=TINY).log() - p),
        )
        grad_input[some] = _weighted(grad, target[some], weight)


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the loss of each row to ``output``.

    Args:
        input: probabilities, (N, classes).
        target: class of each row, (N,); the loss of a negative one is 0.
        weight: factor of each class, (classes,), or empty.
        output: (N,).
    """
    p = wide(input).gather(1, target.clamp(min=0)[:, None])[:, 0]
    loss = -alpha * (1 - p).pow(gamma) * p.clamp(min=TINY).log()
    output.copy_(_weighted(loss, target, weight) * (target >= 0))


def softmax_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivatives of the losses by the logits to ``grad_input``; for the arguments see
    ``softmax_focal_loss_forward``. ``buff`` (N,) gets a factor of each row."""
    p = wide(input).gather(1, target.clamp(min=0)[:, None])[:, 0]
    factor = alpha * (gamma * (1 - p).pow(gamma - 1) * p * p.clamp(min=TINY).log() - (1 - p).pow(gamma))
    factor = _weighted(factor, target, weight) * (target >= 0)
    buff.copy_(factor)
    torch.mul(input, -factor.to(input.dtype)[:, None], out=grad_input)
    grad_input.scatter_add_(1, target.clamp(min=0)[:, None], factor.to(grad_input.dtype)[:, None])


def _rows(input: Tensor, target: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield some rows, their probabilities p and 1 - p, and which of their elements are of the target's class.

    MMCV's 1 - p is 0 for logits above 17, which makes the loss of such a background too large.
    """
    classes = input.size(1)
    step = max(1, LIMIT // max(1, classes))
    for first in range(0, len(input), step):
        some = slice(first, first + step)
        logits = wide(input[some])
        positive = target[some, None] == torch.arange(classes, device=input.device)
        yield some, logits.sigmoid(), (-logits).sigmoid(), positive


def _weighted(loss: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Multiply the rows by the weights of their classes; the background has weight 1."""
    if not weight.numel():
        return loss
    inside = (target >= 0) & (target < len(weight))
    factor = torch.where(inside, wide(weight)[target.clamp(0, len(weight) - 1)], 1)
    return loss * (factor[:, None] if loss.ndim == 2 else factor)
