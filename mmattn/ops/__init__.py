from .elsa import elsa_attention
from .mean_shift import mean_shift_attention

__all__ = ['elsa_attention', 'mean_shift_attention']
