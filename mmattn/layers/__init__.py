from .block import Block
from .drop_path import DropPath
from .elsa import ELSA
from .mlp import MLP
from .window import WindowAttention

__all__ = ['ELSA', 'MLP', 'Block', 'DropPath', 'WindowAttention']
