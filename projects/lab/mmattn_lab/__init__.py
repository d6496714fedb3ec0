"""Rivals of GSA's attention: layers for ``attention`` of every frame, and the ResNet in which they are compared. And
a backbone whose maps are computed once.

A config names them after ``custom_imports = dict(imports=['mmattn_lab'])``.
"""

from .attention_augmented import AttentionAugmentedConv
from .axial import AxialAttention
from .global_context import CompactNonLocal, EfficientAttention
from .involution import Involution
from .kept_maps import KeptMaps
from .other_libraries import BottleneckAttention, CrissCrossAttention, HaloAttention, LambdaLayer, NonLocal
from .relations import LocalRelation, PairwiseAttention, PatchwiseAttention
from .rival_resnet import RivalResNet
from .stand_alone import StandAloneAttention

__all__ = [
    'AttentionAugmentedConv',
    'AxialAttention',
    'BottleneckAttention',
    'CompactNonLocal',
    'CrissCrossAttention',
    'EfficientAttention',
    'HaloAttention',
    'Involution',
    'KeptMaps',
    'LambdaLayer',
    'LocalRelation',
    'NonLocal',
    'PairwiseAttention',
    'PatchwiseAttention',
    'RivalResNet',
    'StandAloneAttention',
]
