from .elsa_swin import ELSASwin

__all__ = ['ELSASwin']
