from .block import Block
from .drop_path import DropPath
from .elsa import ELSA
from .mean_shift import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention
from .mlp import MLP
from .norm import batch_norm
from .shunted import DetailMLP, EnhancedAttention, ShuntedAttention, TokenConv2d, TokenMerging
from .window import WindowAttention

__all__ = [
    'ELSA', 'MLP', 'Block', 'DetailMLP', 'DropPath', 'EnhancedAttention', 'GroupedLinear', 'MeanShiftAttention',
    'MeanShiftWindowAttention', 'ShuntedAttention', 'TokenConv2d', 'TokenMerging', 'WindowAttention', 'batch_norm'
]
