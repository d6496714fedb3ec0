"""Operators: functions on tensors. Each has a reference, and ``backend`` names the path; None chooses the fastest."""

from .aggregated_attention import aggregated_attention
from .attention import attention, multi_head_attention
from .elsa import elsa_attention, neighbourhood_sum
from .global_self_attention import axial_attention, content_attention
from .mean_shift import mean_shift_attention, mean_shift_by_landmarks, mean_shift_steps, projected_mean_shift
from .neighbourhood import neighbourhood_attention
from .shunted import shunted_attention
from .window_attention import window_attention

__all__ = [
    'aggregated_attention',
    'attention',
    'axial_attention',
    'content_attention',
    'elsa_attention',
    'mean_shift_attention',
    'mean_shift_by_landmarks',
    'mean_shift_steps',
    'multi_head_attention',
    'neighbourhood_attention',
    'neighbourhood_sum',
    'projected_mean_shift',
    'shunted_attention',
    'window_attention',
]
