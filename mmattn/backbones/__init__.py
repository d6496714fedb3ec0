from .elsa_swin import ELSASwin
from .gsa_resnet import GSAResNet
from .shunted import ShuntedTransformer

__all__ = ['ELSASwin', 'GSAResNet', 'ShuntedTransformer']
