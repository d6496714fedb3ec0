"""Sharded training by MMEngine's FSDP strategy, see configs/_base_/fsdp.py."""

import torch
from mmengine.registry import FUNCTIONS
from torch import nn


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """PyTorch's ``auto_wrap_policy`` that shards every block whose class says ``sharding_unit``, and nothing else."""
    return recurse or getattr(module, 'sharding_unit', False)


def cpu_shards() -> bool:
    """Whether this torch's FSDP runs on the CPU."""
    try:
        torch.cpu.Stream(priority=-1)
    except TypeError:
        return False
    return True
