"""Mechanisms that only the papers' tables of ablations have."""

from .dynamic_filters import DecoupledDynamicFilter, DynamicDepthwiseConv
from .ghost_head import GhostHeadAttention
from .local_attention import LocalAttention

__all__ = ['DecoupledDynamicFilter', 'DynamicDepthwiseConv', 'GhostHeadAttention', 'LocalAttention']
