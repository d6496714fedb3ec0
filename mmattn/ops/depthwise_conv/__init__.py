"""Depth-wise convolution of tokens, with the gradients of its filters in C++, and all of it in Triton."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE, autocast_dtype, check_maps, check_triton, named_backend, triton_takes
from ..library import call, operator, rows_of
from ..tracing import is_plain

#: sides of filters that kernel.cpp is compiled for
SIZES = 3, 5, 7
#: what it reads; float16 is converted before
READ = torch.float32, torch.bfloat16


def depthwise_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    backend: str | None = None,
    *,
    skip: bool = False,
    gelu: bool = False,
    gated: bool = False,
) -> Tensor:
    """Convolution of each channel of tokens with a filter of its own, zero outside the map, which keeps its size.

    Args:
        x: (B, H, W, C), or if ``gated`` (B, H, W, 2 * C).
        weight: (C, 1, k, k), k odd.
        bias: (C) or None.
        backend: 'reference', 'cpp' (at most 32 bits on the CPU, k = 3, 5 or 7) or 'triton' (GPUs, sums in float32).
            'cpp' is torch's convolution, too, and computes the gradients of weight and bias in C++, in float32. It has
            derivatives of any order; 'triton' has no second derivatives. Both are not for torch.func. None chooses the
            fastest one that can serve.
        skip: add x to the result.
        gelu: apply GELU to the result, or to the sum.
        gated: convolve the first half of the channels, and multiply the result by the other half.

    Returns:
        (B, H, W, C), of the dtype of x, or autocast's.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, weight=weight, bias=bias)
    if x.dim() != 4 or weight.dim() != 4 or ((1 + gated) * weight.shape[0], weight.shape[1]) != (x.shape[-1], 1):
        raise ValueError(
            f'x must be (B, H, W, {"2 * " if gated else ""}C) and weight (C, 1, k, k), not {tuple(x.shape)} and '
            f'{tuple(weight.shape)}'
        )
    k, columns = weight.shape[2:]
    if k != columns or k % 2 == 0:
        raise ValueError(f'the filters of weight must be k x k with odd k, not {k} x {columns}')
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f'bias must be {tuple(weight.shape[:1])}, not {tuple(bias.shape)}')
    if backend is None:
        backend = 'triton' if (skip or gelu or gated) and triton_takes(x) else fastest(x, weight, bias)
    function = named_backend(BACKENDS, backend)
    if skip or backend == 'triton':
        x = x.to(autocast_dtype(x))
    if backend == 'triton':
        return function(x, weight, bias, skip, gelu, gated)
    if gated:
        x, factor = x.chunk(2, -1)
        return depthwise_conv(x, weight, bias, backend, skip=skip, gelu=gelu) * factor
    if not skip:
        out = function(x, weight, bias)
    elif x.dtype in (torch.float16, torch.bfloat16):  # A weight plus 1 would lose most of its digits.
        out = x + function(x, weight, bias)
    else:  # One pass over the map: the identity adds 1 to the centre of each filter.
        out = function(x, weight + F.pad(weight.new_ones(1, 1, 1, 1), [int(k) // 2] * 4), bias)
    if gelu and not out.requires_grad and is_plain(out):  # The memory of another map costs a tenth of inference.
        return torch.ops.aten.gelu_(out)
    return F.gelu(out) if gelu else out


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    C, _, k, _ = weight.shape
    # int, since torch.jit.trace of torch 2.1 makes sizes tensors
    return F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=int(k) // 2, groups=int(C)).permute(0, 2, 3, 1)


def _cpp(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    library.check_takes(x, weight.detach(), dtypes=HALF_OR_SINGLE)
    _check_size(weight.shape[-1])
    return _DepthwiseConv.apply(x, weight, bias)


def _triton(x: Tensor, weight: Tensor, bias: Tensor | None, skip: bool, gelu: bool, gated: bool) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x)
    from .triton import depthwise_conv_triton

    return depthwise_conv_triton(x, weight, bias, skip, gelu, gated)


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _reference, 'cpp': _cpp, 'triton': _triton}


def fastest(x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
    """The backend of a convolution alone that None stands for, of :func:`depthwise_conv`."""
    k = weight.shape[-1]
    fast = k in SIZES and (k > 3 or x.dtype != torch.float32)  # for these, torch's gradients take as long
    trained = torch.is_grad_enabled() and (weight.requires_grad or bias is not None and bias.requires_grad)
    served = fast and trained and library.takes(x, weight.detach(), dtypes=HALF_OR_SINGLE)  # a Parameter is not plain
    return 'cpp' if served else 'reference'


class _DepthwiseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = _reference(x, weight, bias)
        ctx.save_for_backward(x.to(out.dtype), weight, bias)  # as autocast converts it
        ctx.dtype = x.dtype
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        grad_x = _convolve(grad, weight.flip(2, 3)).to(ctx.dtype) if needs_x else None
        if not (needs_weight or needs_bias):
            return grad_x, None, None
        if grad.dtype not in READ:
            grad, x = grad.float(), x.float()
        grad_weight, grad_bias = _weight_backward(grad, x, weight.shape[-1])
        return grad_x, grad_weight.to(weight.dtype), None if bias is None else grad_bias.to(bias.dtype)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution in the dtype of x. Autocast would convert what F.conv2d takes, if it is on in a backward pass."""
    C, _, k, _ = weight.shape
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    out = torch.convolution(x.permute(0, 3, 1, 2), weight, bias, [1, 1], [k // 2] * 2, [1, 1], False, [0, 0], C)
    return out.permute(0, 2, 3, 1)


def _check_size(k: int) -> None:
    if k not in SIZES:
        raise ValueError(f"filters of backend 'cpp' must have a side of 3, 5 or 7, not {k}")


def _check(grad: Tensor, x: Tensor, k: int) -> None:
    check_maps(grad=grad, x=x)
    if x.dim() != 4 or grad.shape != x.shape:
        raise ValueError(f'grad and x must be (B, H, W, C), not {tuple(grad.shape)} and {tuple(x.shape)}')
    _check_size(k)


def _empty(grad: Tensor, x: Tensor, k: int) -> list[Tensor]:
    C = x.shape[-1]
    return [x.new_empty(shape, dtype=torch.float32) for shape in ((C, 1, k, k), (C,))]


def _sums(grad: Tensor, x: Tensor, k: int) -> list[Tensor]:
    """The gradients of weight and bias, in float32."""
    (grad, grad_stride), (x, x_stride), out = rows_of(grad), rows_of(x), _empty(grad, x, k)
    numbers = [*x.shape, k, grad_stride, x_stride, x.dtype == torch.bfloat16]
    call('depthwise_conv_weight_backward', grad, x, *out, numbers)
    return out


_weight_backward = operator(
    'depthwise_conv_weight_backward(Tensor grad, Tensor x, int kernel_size) -> Tensor[]',
    _check,
    _sums,
    _empty,
    # Both are sums of products of grad with shifted x, so their own gradients are convolutions again.
    lambda weight, bias, grad, x, k: [_convolve(x, weight, bias), _convolve(grad, weight.flip(2, 3))],
    READ,
)
