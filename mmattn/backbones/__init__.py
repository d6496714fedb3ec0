from .elsa_swin import ELSASwin
from .shunted import ShuntedTransformer

__all__ = ['ELSASwin', 'ShuntedTransformer']
