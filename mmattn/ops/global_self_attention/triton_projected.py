"""GSA on a GPU from its projections on, as one function of autograd: content, columns, the norm after them, and rows.

As functions of their own, autograd would add the gradients of the queries and of the values, each of which two parts
read, and would stack those of the three projections. Here, the kernels write into one map, or add to it. The backward
pass keeps the map before the norm, and computes the one after it again.
"""

import torch
from torch import Tensor, nn

from ..batch_norm.triton import NormReLU, gradients, result
from ..derivatives import apply, once
from ..library import rows_of
from . import triton, triton_content


def projected_attention_triton(
    maps: Tensor, columns: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float,
    norm: nn.BatchNorm2d | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """``projected_attention`` of maps of 16 bits. Pixels beyond the tables do not attend to each other."""
    return apply(_Projected, rows_of(maps)[0], columns, rows, weight, bias, eps, norm, dtype)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, maps: Tensor, columns: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float,
        norm: nn.BatchNorm2d | None, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ctx.dtypes = columns.dtype, rows.dtype
        query, value, key = maps.unbind(3)
        context, lse = triton_content.context_and_lse(key, value)
        between, columns = triton.along_lines(query, value, columns, None, *[None] * 5, 1, dtype)
        running = None if norm is None or norm.training else (norm.running_mean, norm.running_var)
        normed = NormReLU(between.flatten(3), None, weight, bias, eps, running, norm, relu=False)
        after = normed(between.flatten(3)).view_as(between)
        out, rows = triton.along_lines(query, after, rows, context, *[None] * 5, 2, dtype)
        ctx.save_for_backward(maps, columns, rows, context, lse, between, weight, bias, *normed.statistics)
        ctx.numbers = eps, normed.own
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        function = _refusing if torch.is_grad_enabled() else _gradients
        of_maps, of_columns, of_rows, *of_norm = function(grad, *ctx.saved_tensors, *ctx.numbers)
        return of_maps, of_columns.to(ctx.dtypes[0]), of_rows.to(ctx.dtypes[1]), *of_norm, None, None, None


def _gradients(
    grad: Tensor, maps: Tensor, columns: Tensor, rows: Tensor, context: Tensor, lse: Tensor, between: Tensor,
    weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, own: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Those of maps, of columns and rows in float32, and of weight and bias."""
    of_maps = torch.empty_like(maps, memory_format=torch.contiguous_format)
    (query, value, key), (of_query, of_value, of_key) = maps.unbind(3), of_maps.unbind(3)
    before = between.flatten(3)
    after = result(before, None, weight, bias, eps, mean, variance, None, None, before.dtype, False).view_as(between)
    of_after = torch.empty_like(after)
    of_rows, of_context = triton.write_gradients(grad, query, after, rows, context, 2, of_query, of_after)
    tensors = of_after.flatten(3), before, weight, bias, mean, variance, None
    of_before, _, *of_norm = gradients(*tensors, eps, own, False)
    triton_content.write_gradients(of_context, key, value, context, lse, of_key, of_value)
    of_between = of_before.view_as(between)
    of_columns, _ = triton.write_gradients(of_between, query, value, columns, None, 1, of_query, of_value, adds=True)
    return of_maps, of_columns, of_rows, *of_norm


_refusing = once(_gradients)
