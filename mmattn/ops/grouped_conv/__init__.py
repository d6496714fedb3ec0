"""Convolution of groups of a few channels: the first layer of ELSA's logits."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...arguments import check_whole
from .. import library
from ..backend import check_maps, named_backend
from ..library import call, empty_like, operator, rows_of

#: channels of a group for which kernel.cpp is faster than torch on maps of any size. It takes all multiples
#: of 4; for 8, torch is slower on large maps and faster on small ones.
FAST_WIDTH = 4
CPP_DTYPES = torch.float32, torch.bfloat16  #: of maps that kernel.cpp serves; the second in gradients only


def grouped_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dilation: int = 1, backend: str | None = None
) -> Tensor:
    """Convolution of tokens within groups of channels, zero outside the map, which keeps its size.

    Args:
        x: (B, H, W, C).
        weight: (C, width, k, k), k odd; each group has ``width`` channels, which divides C.
        bias: (C) or None.
        dilation: distance of neighbours, in pixels.
        backend: 'reference' or 'cpp' (float32 on the CPU, widths that are multiples of 4; of bfloat16, it computes the
            gradients). The latter has no second derivatives and is not for torch.func. None chooses the faster one
            that can serve.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_groups(x, weight, bias, dilation)
    function = named_backend(BACKENDS, fastest(x, weight) if backend is None else backend)
    return function(x, weight, bias, dilation)


def check_groups(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> None:
    """Check what a grouped convolution takes, see :func:`grouped_conv`.

    Raises:
        ValueError: if they do not fit each other.
    """
    check_maps(x=x, weight=weight, bias=bias)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f'x must be (B, H, W, C) and weight (C, width, k, k), not {tuple(x.shape)} and {tuple(weight.shape)}'
        )
    C, width, k, columns = weight.shape
    if k != columns or k % 2 == 0:
        raise ValueError(f'the filters of weight must be k x k with odd k, not {k} x {columns}')
    if C % width:
        raise ValueError(f'the {C} channels of x do not divide into groups of {width}')
    if bias is not None and bias.shape != (C,):
        raise ValueError(f'bias must be ({C},), not {tuple(bias.shape)}')
    check_whole('dilation', dilation)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    C, width, k, _ = weight.shape
    padding = dilation * (k // 2)
    out = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=padding, dilation=dilation, groups=C // width)
    return out.permute(0, 2, 3, 1)


def _cpp(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """The same in C++, with the sums in registers."""
    library.check_takes(x, dtypes=CPP_DTYPES)
    if x.dtype != torch.float32:
        return _HalfConvolution.apply(x, weight, bias, dilation)
    library.check_takes(weight.detach())
    return _convolve(x, weight, bias, dilation)


class _HalfConvolution(torch.autograd.Function):
    """A convolution of bfloat16 by torch, which CPUs have instructions for, with gradients in float32 by the library:
    torch's take two to three times as long."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        _check(x, weight, bias, dilation)
        ctx.save_for_backward(x, weight, bias)
        ctx.dilation = dilation
        return _reference(x, weight, bias, dilation)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        grad_x, grad_weight = _convolve_backward(grad.float(), x.float(), weight.float(), ctx.dilation)
        grad_bias = None if bias is None else grad.sum((0, 1, 2), dtype=bias.dtype)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), grad_bias, None


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _reference, 'cpp': _cpp}


def fastest(x: Tensor, weight: Tensor) -> str:
    """The backend that None stands for, of :func:`grouped_conv`."""
    trains = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    dtypes = CPP_DTYPES if trains else CPP_DTYPES[:1]
    served = weight.shape[1] == FAST_WIDTH and library.takes(x, weight.detach(), dtypes=dtypes)
    return 'cpp' if served else 'reference'


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    x, stride = rows_of(x)
    out = empty_like(x)
    if out.numel():
        bias = None if bias is None else bias.contiguous()
        call('grouped_conv', x, weight.contiguous(), bias, out, _numbers(x, weight, dilation, stride))
    return out


def _backward(grad: Tensor, x: Tensor, weight: Tensor, dilation: int) -> list[Tensor]:
    """The gradients of x and weight."""
    x, stride = rows_of(x)
    grad_x, grad_weight = empty_like(x), weight.new_zeros(weight.shape)
    if x.numel():
        maps = x, weight.contiguous(), grad.contiguous(), grad_x, grad_weight
        call('grouped_conv_backward', *maps, _numbers(x, weight, dilation, stride))
    return [grad_x, grad_weight]


def _numbers(x: Tensor, weight: Tensor, dilation: int, stride: int) -> list[int]:
    """What describes the tensors to the library."""
    return [*x.shape, *weight.shape[1:3], dilation, stride]


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> None:
    check_groups(x, weight, bias, dilation)
    if weight.shape[1] % 4:
        raise ValueError(f"groups of backend 'cpp' must have a multiple of 4 channels, not {weight.shape[1]}")


def _check_backward(grad: Tensor, x: Tensor, weight: Tensor, dilation: int) -> None:
    _check(x, weight, None, dilation)
    if grad.shape != x.shape:
        raise ValueError(f'grad must be as x, {tuple(x.shape)}, not {tuple(grad.shape)}')


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> list[Tensor | None]:
    return [*_convolve_backward(grad, x, weight, dilation), None if bias is None else grad.sum((0, 1, 2))]


_convolve_backward = operator(
    'grouped_conv_backward(Tensor grad, Tensor x, Tensor weight, int dilation) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, x, weight, dilation: [empty_like(x), empty_like(weight)],
)
_convolve = operator(
    'grouped_conv(Tensor x, Tensor weight, Tensor? bias, int dilation) -> Tensor',
    _check,
    _forward,
    lambda x, *_: empty_like(x),
    _gradients,
)
