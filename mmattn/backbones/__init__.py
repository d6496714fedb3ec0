from . import layer_decay  # noqa: F401, registers the optimizer constructor
from .dino_vit import DINOViT
from .elsa_swin import ELSASwin
from .elsa_volo import ELSAVOLO
from .gsa_resnet import GSAResNet
from .msf_swin import MSFSwin
from .msf_vit import MSFViT
from .shunted import ShuntedTransformer
from .swin import SwinFrame
from .vit import ViTFrame

__all__ = [
    'DINOViT',
    'ELSASwin',
    'ELSAVOLO',
    'GSAResNet',
    'MSFSwin',
    'MSFViT',
    'ShuntedTransformer',
    'SwinFrame',
    'ViTFrame',
]
