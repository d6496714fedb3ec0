from .ablations.dynamic_filters import DecoupledDynamicFilter, DynamicDepthwiseConv
from .ablations.ghost_head import GhostHeadAttention
from .ablations.local_attention import LocalAttention
from .block import Block
from .class_attention import ClassAttention
from .depthwise_conv import DepthwiseConv
from .elsa import ELSA
from .global_self_attention import GlobalSelfAttention
from .mean_shift import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention
from .mechanism import MECHANISMS, build_mechanism, check_mechanism, mechanism_settings
from .neighbourhood_attention import NeighbourhoodAttention
from .norm import batch_norm
from .outlook import OutlookAttention
from .self_attention import EnhancedAttention, SelfAttention
from .shunted import FEED_FORWARD, ConvMLP, DetailMLP, LocalEnhancement, ShuntedAttention, TokenMerging
from .spatial_reduction import SpatialReductionAttention
from .token_conv import Convolution, TokenConv2d
from .window import WindowAttention

__all__ = [
    'ELSA',
    'FEED_FORWARD',
    'Block',
    'ClassAttention',
    'ConvMLP',
    'Convolution',
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
    'NeighbourhoodAttention',
    'OutlookAttention',
    'SelfAttention',
    'ShuntedAttention',
    'SpatialReductionAttention',
    'TokenConv2d',
    'TokenMerging',
    'WindowAttention',
    'batch_norm',
    'build_mechanism',
    'check_mechanism',
    'mechanism_settings',
]
