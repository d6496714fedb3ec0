"""Where MMEngine finds ``type='mmattn.ELSASwin'``, in a config that imports nothing.

For a name that begins with ``mmattn.``, MMEngine imports this module. Then it looks into the child of its registry that
has the scope ``mmattn``. What is not there, as ``mmattn.detection.MaskTTAModel``, it imports as a path of modules.
"""

from mmengine import registry
from mmengine.registry import Registry


def _child(parent: Registry) -> Registry:
    return Registry(parent.name, parent=parent, scope='mmattn', locations=['mmattn.backbones'])


MODELS = _child(registry.MODELS)
OPTIM_WRAPPER_CONSTRUCTORS = _child(registry.OPTIM_WRAPPER_CONSTRUCTORS)
