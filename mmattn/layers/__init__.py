from .elsa import ELSA
from .mlp import MLP
from .drop_path import DropPath
from .window import WindowAttention

__all__ = ['ELSA', 'MLP', 'DropPath', 'WindowAttention']
