from .block import Block
from .dynamic_filters import DecoupledDynamicFilter, DepthwiseConv, DynamicDepthwiseConv
from .elsa import ELSA
from .ghost_head import GhostHeadAttention
from .global_self_attention import GlobalSelfAttention
from .local_attention import LocalAttention
from .mean_shift import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention
from .mechanism import MECHANISMS, build_mechanism, check_mechanism, mechanism_settings
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
from .volo import OutlookAttention, SelfAttention
from .window import WindowAttention

__all__ = [
    'ELSA',
    'FEED_FORWARD',
    'Block',
    'ConvMLP',
    'DecoupledDynamicFilter',
    'DepthwiseConv',
    'DetailMLP',
    'DynamicDepthwiseConv',
    'EnhancedAttention',
    'GhostHeadAttention',
    'GlobalSelfAttention',
    'GroupedLinear',
    'LocalAttention',
    'LocalEnhancement',
    'MECHANISMS',
    'MeanShiftAttention',
    'MeanShiftWindowAttention',
    'OutlookAttention',
    'SelfAttention',
    'ShuntedAttention',
    'TokenConv2d',
    'TokenMerging',
    'WindowAttention',
    'batch_norm',
    'build_mechanism',
    'check_mechanism',
    'mechanism_settings',
]
