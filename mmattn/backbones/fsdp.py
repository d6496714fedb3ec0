"""For MMEngine's FSDP strategy, see configs/_base_/fsdp.py."""
from mmengine.registry import FUNCTIONS
from torch import nn

from ..layers import Block
from .gsa_resnet import Bottleneck


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """PyTorch's ``auto_wrap_policy`` that makes a unit of every block of every backbone here, and of nothing else."""
    return recurse or isinstance(module, (Block, Bottleneck))
