from .elsa_swin import ELSASwin
from .gsa_resnet import GSAResNet
from .msf_swin import MSFSwin
from .msf_vit import MSFViT
from .shunted import ShuntedTransformer
from .swin import SwinFrame
from .vit import ViTFrame

__all__ = ['ELSASwin', 'GSAResNet', 'MSFSwin', 'MSFViT', 'ShuntedTransformer', 'SwinFrame', 'ViTFrame']
