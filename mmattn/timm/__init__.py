"""timm's names for the backbones: ``import mmattn.timm``, then ``timm.create_model('elsa_swin_tiny')``.

:class:`TimmClassifier` has the methods of timm's own models, and :class:`VOLOClassifier` also has VOLO's head. A
model's name is that of its family, with the variant from ``arch_zoo`` of the backbone. DINOViT has no names here: timm
has these models.
"""

from .classifier import TimmClassifier
from .names import *  # noqa: F403, the models
from .names import create, variants
from .volo import VOLOClassifier

__all__ = ['TimmClassifier', 'VOLOClassifier', 'create', 'variants']
