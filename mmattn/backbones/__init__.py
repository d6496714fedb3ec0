from .elsa_swin import ELSASwin
from .gsa_resnet import GSAResNet
from .msf_swin import MSFSwin
from .msf_vit import MSFViT
from .shunted import ShuntedTransformer

__all__ = ['ELSASwin', 'GSAResNet', 'MSFSwin', 'MSFViT', 'ShuntedTransformer']
