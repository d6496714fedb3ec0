"""Random calls of torch.ops.mmattn: right arguments, and arguments with a few mistakes.

``python -m tests.ops.fuzz SEED CALLS [LIBRARY]`` makes calls with another compiled library, such as one with
AddressSanitizer.
"""

import ctypes
import random
import sys
from collections import Counter

import torch
from torch import Tensor

from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.elsa.shifted import summed
from mmattn.ops.global_self_attention import axial_attention_reference
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.ops.neighbourhood import neighbourhood_attention_reference

HUGE = [0, -1, -3, 7, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**64]
OPERATORS = 'neighbourhood_sum', 'neighbourhood_sum_backward', 'axial_sum', 'axial_sum_backward'
OPERATORS += 'neighbourhood_attention', 'neighbourhood_attention_backward', 'grouped_conv', 'grouped_conv_backward'
OPERATORS += ('depthwise_conv_weight_backward',)


def right_arguments(name: str, choose: random.Random) -> list:
    B, H, W, heads = (choose.randint(0 if n == 0 else 1, most) for n, most in enumerate((2, 9, 9, 3)))
    width, other = choose.choice([0, 1, 3, 8, 11]), choose.choice([0, 1, 3, 8])
    if name.startswith('axial'):
        dim = choose.choice([1, 2])
        length = (H, W)[dim - 1]
        reach = choose.choice([0, 1, 3, 2**31, 2**63 - 1])
        arguments = [(B, H, W, heads, other), (B, H, W, heads, width), (2 * length - 1, other), dim, reach]
    elif name.startswith('neighbourhood_attention'):
        k, dilation = choose.choice([1, 3, 5, 7]), choose.choice([1, 1, 2, 3, 2**31, 2**62, 2**63 - 1])
        bias, beyond = choose.choice([None, (heads, 2 * k - 1, 2 * k - 1)]), choose.choice([None, (2, heads, width)])
        arguments = [*[(B, H, W, heads, width)] * 3, bias, beyond, k, dilation]
    elif name.startswith('depthwise_conv'):
        x = torch.randn(2, B, H, W, choose.choice([1, 3, 16, 70])).to(choose.choice([torch.float32, torch.bfloat16]))
        return [*x, choose.choice([3, 5, 7])]
    elif name.startswith('grouped_conv'):
        width, k, dilation = choose.choice([4, 8]), choose.choice([1, 3, 5]), choose.choice([1, 1, 2, 2**31, 2**63 - 1])
        C = heads * width
        arguments = [(B, H, W, C), (C, width, k, k), choose.choice([None, (C,)]), dilation]
        if name.endswith('backward'):
            return [torch.randn(B, H, W, C), *(torch.randn(shape) for shape in arguments[:2]), dilation]
    else:
        C, taps = heads * width, choose.choice([1, 9, 25])
        mul = choose.choice([None, (taps, C), (B, taps, C)])
        dilation = choose.choice([1, 1, 2, 3, 2**31, 2**62, 2**63 - 1])
        arguments = [(B, H, W, heads, taps), (B, H, W, C), mul, choose.choice([None, (taps, C)]), dilation]
    if name.endswith('backward'):
        arguments.insert(0, arguments[1])
    return [torch.randn(x) if isinstance(x, tuple) else x for x in arguments]


def laid_out(x: Tensor, choose: random.Random) -> Tensor:
    """The same numbers in another layout."""
    kind = choose.randrange(5)
    if kind == 0 and x.dim():
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 1 and x.dim():
        return torch.cat([x[..., :1].new_full((*x.shape[:-1], 2), 9.0), x, x], -1)[..., 2 : 2 + x.shape[-1]]
    if kind == 2 and x.dim():
        return x[..., :1].expand(x.shape)
    return x


def with_mistake(x: object, choose: random.Random) -> object:
    """An argument of another kind, shape, dtype, device or size."""
    if not isinstance(x, Tensor):
        return choose.choice([*HUGE, None, 1.5, torch.randn(3)])
    shape = list(x.shape)
    kind = choose.randrange(8)
    if kind == 0:
        return x.to(choose.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]))
    if kind == 1:
        return x.to('meta')
    if kind == 2 and shape:
        shape[choose.randrange(len(shape))] += choose.choice([-1, 1, 4])
        return torch.randn([max(n, 0) for n in shape])
    if kind == 3:
        return torch.randn(shape[: choose.randint(0, len(shape))] + [1] * choose.randint(0, 2))
    if kind == 4 and shape:
        shape[choose.randrange(len(shape))] = 0
        return torch.randn(shape)
    if kind == 5:
        return None
    if kind == 6:
        return choose.choice([torch.randn(()), x.to_sparse(), torch.randn(1).expand([2**20] * 2 + [1, 1, 9])])
    return 3


def expected(name: str, arguments: list) -> list[Tensor]:
    """By the plain path in float64."""
    if name.startswith('depthwise_conv'):
        grad, x, k = arguments
        parts = [torch.zeros(shape).double().requires_grad_() for shape in ((x.shape[-1], 1, k, k), x.shape[-1:])]
        return torch.autograd.grad(depthwise_conv(x.double(), *parts), parts, grad.double())
    tensors = [x.double() if isinstance(x, Tensor) else x for x in arguments if not isinstance(x, int)]
    numbers = [min(x, 10) for x in arguments if isinstance(x, int)]  # A mistake makes a side of 10 pixels at most.
    grad = tensors.pop(0) if name.endswith('backward') else None
    tensors = [None if x is None else x.detach().requires_grad_() for x in tensors]
    if name.startswith('axial'):
        query, value, table = tensors
        dim, reach = numbers
        far = max(len(table) // 2 - reach, 0)
        out = axial_attention_reference(query, value, table[far : len(table) - far], dim, 'mask')
    elif name.startswith('neighbourhood_attention'):
        out = neighbourhood_attention_reference(*tensors, *numbers, 0.0)
    elif name.startswith('grouped_conv'):
        out = grouped_conv(*tensors, *[None] * (3 - len(tensors)), *numbers, backend='reference')
    else:
        weights, value, *ghosts = tensors
        ghosts = [None if x is None else x.transpose(-1, -2) for x in ghosts]
        out = summed(weights, value, *ghosts, *numbers)
    if grad is None:
        return [out]
    leaves = [x for x in tensors if x is not None]
    return list(torch.autograd.grad(out, leaves, grad, allow_unused=True, materialize_grads=True))


def fuzz(seed: int, calls: int) -> Counter:
    """Make calls. A wrong result fails; arguments that do not fit raise an error, and never end the process.

    Returns:
        how many were right, and how many were refused with each kind of error.
    """
    choose, counts = random.Random(seed), Counter()
    torch.manual_seed(seed)
    for _ in range(calls):
        name = choose.choice(OPERATORS)
        arguments = right_arguments(name, choose)
        arguments = [laid_out(x, choose) if isinstance(x, Tensor) else x for x in arguments]
        for i in choose.sample(range(len(arguments)), choose.choice([0, 1, 1, 2])):
            arguments[i] = with_mistake(arguments[i], choose)
        if choose.random() < 0.05:
            arguments = [x.to('meta') if isinstance(x, Tensor) else x for x in arguments]
        try:
            out = getattr(torch.ops.mmattn, name)(*arguments)
        except (ValueError, TypeError, RuntimeError) as error:
            counts[type(error).__name__] += 1
            continue
        out = [out] if isinstance(out, Tensor) else out
        given = [x for x in arguments if isinstance(x, Tensor)]
        assert {x.device for x in out} == {x.device for x in given}, (name, arguments)
        if out[0].is_meta:
            counts['meta'] += 1
            continue
        for actual, wanted in zip(out, expected(name, arguments), strict=True):
            torch.testing.assert_close(actual.double(), wanted, atol=1e-4, rtol=1e-4)
        counts['right'] += 1
    return counts


if __name__ == '__main__':
    if sys.argv[3:]:
        library._C = ctypes.CDLL(sys.argv[3])
    torch.set_num_threads(2)
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
