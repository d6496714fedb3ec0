"""For MMEngine's FSDP strategy, see configs/_base_/fsdp.py."""

import torch
from mmengine.registry import FUNCTIONS
from torch import nn

from ..backbones.gsa_resnet import Bottleneck
from ..layers import Block


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """PyTorch's ``auto_wrap_policy`` that makes a unit of every block of every backbone here, and of nothing else."""
    return recurse or isinstance(module, (Block, Bottleneck))


def cpu_shards() -> bool:
    """Whether this torch's FSDP runs on the CPU."""
    try:
        torch.cpu.Stream(priority=-1)
    except TypeError:
        return False
    return True
