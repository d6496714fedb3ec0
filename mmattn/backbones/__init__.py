from . import layer_decay  # noqa: F401, registers the optimizer constructor
from .dino_vit import DINOViT
from .elsa_swin import ELSASwin
from .elsa_volo import ELSAVOLO
from .gsa_resnet import GSAResNet
from .msf_swin import MSFSwin
from .msf_vit import MSFViT
from .nat import NAT, DiNAT
from .shunted import ShuntedTransformer
from .swin import SwinFrame
from .timm_backbone import TimmBackbone
from .transnext import TransNeXt
from .vit import ViTFrame

__all__ = [
    'DINOViT',
    'DiNAT',
    'ELSASwin',
    'ELSAVOLO',
    'GSAResNet',
    'MSFSwin',
    'MSFViT',
    'NAT',
    'ShuntedTransformer',
    'SwinFrame',
    'TimmBackbone',
    'TransNeXt',
    'ViTFrame',
]
