from .block import Block
from .drop_path import DropPath
from .elsa import ELSA
from .ghost_head import GhostHeadAttention
from .global_self_attention import GlobalSelfAttention
from .mean_shift import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention
from .mechanism import MECHANISMS, build_mechanism, mechanism_settings
from .mlp import MLP
from .norm import batch_norm
from .shunted import (
    FEED_FORWARD,
    ConvMLP,
    DetailMLP,
    EnhancedAttention,
    LocalEnhancement,
    ShuntedAttention,
    TokenMerging,
)
from .token_conv import TokenConv2d
from .window import WindowAttention

__all__ = [
    'ELSA',
    'FEED_FORWARD',
    'MLP',
    'Block',
    'ConvMLP',
    'DetailMLP',
    'DropPath',
    'EnhancedAttention',
    'GhostHeadAttention',
    'GlobalSelfAttention',
    'GroupedLinear',
    'LocalEnhancement',
    'MECHANISMS',
    'MeanShiftAttention',
    'MeanShiftWindowAttention',
    'ShuntedAttention',
    'TokenConv2d',
    'TokenMerging',
    'WindowAttention',
    'batch_norm',
    'build_mechanism',
    'mechanism_settings',
]
