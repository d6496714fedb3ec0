from .elsa import elsa_attention

__all__ = ['elsa_attention']
