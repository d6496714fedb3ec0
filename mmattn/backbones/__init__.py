from .elsa_swin import ELSASwin
from .msf_swin import MSFSwin
from .msf_vit import MSFViT
from .shunted import ShuntedTransformer

__all__ = ['ELSASwin', 'MSFSwin', 'MSFViT', 'ShuntedTransformer']
