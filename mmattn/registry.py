"""Where MMEngine finds ``type='mmattn.ELSASwin'``, in a config that imports nothing.

For a name that begins with ``mmattn.``, MMEngine imports this module. Then it looks into the child of its registry that
has the scope ``mmattn``.
"""

from mmengine import registry
from mmengine.registry import Registry
from mmengine.utils import get_object_from_string


class Node(Registry):
    """The child of a registry with the scope mmattn. A name with a dot is a path below mmattn, as in
    ``mmattn.detection.MaskTTAModel``."""

    def get(self, key: str) -> type | None:
        if '.' in key.removeprefix('mmattn.'):
            return get_object_from_string(f'mmattn.{key.removeprefix("mmattn.")}')
        return super().get(key)


def _node(parent: Registry, *locations: str) -> Registry:
    return Node(parent.name, parent=parent, scope='mmattn', locations=[f'mmattn.{place}' for place in locations])


MODELS = _node(registry.MODELS, 'backbones')
OPTIM_WRAPPER_CONSTRUCTORS = _node(registry.OPTIM_WRAPPER_CONSTRUCTORS, 'backbones')
TRANSFORMS = _node(registry.TRANSFORMS, 'classification')
PARAM_SCHEDULERS = _node(registry.PARAM_SCHEDULERS, 'classification')
