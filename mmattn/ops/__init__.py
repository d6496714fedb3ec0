from .elsa import elsa_attention
from .global_self_attention import axial_attention, content_attention
from .mean_shift import mean_shift_attention

__all__ = ['axial_attention', 'content_attention', 'elsa_attention', 'mean_shift_attention']
