from .ablations.dynamic_filters import DecoupledDynamicFilter, DynamicDepthwiseConv
from .ablations.ghost_head import GhostHeadAttention
from .ablations.local_attention import LocalAttention
from .aggregated_attention import AggregatedAttention, CosineAttention
from .block import Block, DropPath
from .class_attention import ClassAttention
from .depthwise_conv import DepthwiseConv
from .elsa import ELSA
from .feed_forward import FEED_FORWARD, MLP, ConvGLU, ConvMLP, DetailMLP
from .global_self_attention import GlobalSelfAttention
from .mean_shift import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention
from .neighbourhood_attention import NeighbourhoodAttention
from .norm import batch_norm
from .outlook import OutlookAttention
from .rank_augmented_attention import RankAugmentedAttention
from .self_attention import EnhancedAttention, SelfAttention
from .shunted import LocalEnhancement, ShuntedAttention, TokenMerging
from .spatial_reduction import SpatialReductionAttention
from .token_conv import Convolution, PatchConv2d, TokenConv2d
from .token_mixer import (
    TOKEN_MIXERS,
    Attention,
    build_token_mixer,
    check_token_mixer,
    token_mixer_settings,
    token_mixers_by_stage,
)
from .window import WindowAttention

__all__ = [
    'AggregatedAttention',
    'Attention',
    'Block',
    'ClassAttention',
    'ConvGLU',
    'ConvMLP',
    'Convolution',
    'CosineAttention',
    'DecoupledDynamicFilter',
    'DepthwiseConv',
    'DetailMLP',
    'DropPath',
    'DynamicDepthwiseConv',
    'ELSA',
    'EnhancedAttention',
    'FEED_FORWARD',
    'GhostHeadAttention',
    'GlobalSelfAttention',
    'GroupedLinear',
    'LocalAttention',
    'LocalEnhancement',
    'TOKEN_MIXERS',
    'MLP',
    'MeanShiftAttention',
    'MeanShiftWindowAttention',
    'NeighbourhoodAttention',
    'OutlookAttention',
    'PatchConv2d',
    'RankAugmentedAttention',
    'SelfAttention',
    'ShuntedAttention',
    'SpatialReductionAttention',
    'TokenConv2d',
    'TokenMerging',
    'WindowAttention',
    'batch_norm',
    'build_token_mixer',
    'check_token_mixer',
    'token_mixer_settings',
    'token_mixers_by_stage',
]
