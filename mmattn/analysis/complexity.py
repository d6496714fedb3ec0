"""Counting operations."""

import math
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

#: fused attention on the CPU, which torch's counter leaves out; torch 2.1 has no such operator
cpu_attention = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)


def count_operations(forward: Callable[[], object], attention_share: float = 1) -> float:
    """Multiply-adds of what a function computes."""
    # Besides what torch counts (convolutions, products, attention): the ELSA operator's step, the CPU's attention.
    uncounted = {torch.ops.aten.addcmul_: lambda *shapes, out_shape=None, **_: 2 * math.prod(out_shape)}
    if cpu_attention is not None:
        uncounted[cpu_attention] = lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
    with FlopCounterMode(display=False, custom_mapping=uncounted) as counter, torch.no_grad():
        forward()
    # Only attention multiplies batches of matrices.
    attention = sum(
        flops
        for op, flops in counter.get_flop_counts()['Global'].items()
        if 'bmm' in str(op) or 'scaled_dot_product' in str(op)
    )
    return (counter.get_total_flops() - (1 - attention_share) * attention) / 2
