"""Where MMEngine finds ``type='mmguard.AtomicCheckpointHook'``, in a config that imports nothing.

For a name that begins with ``mmguard.``, MMEngine imports this module. Then it looks into the child of its registry
that has the scope ``mmguard``.
"""

from mmengine import registry
from mmengine.registry import Registry

HOOKS = Registry('hook', parent=registry.HOOKS, scope='mmguard', locations=['mmguard.runs'])
OPTIM_WRAPPERS = Registry('optim_wrapper', parent=registry.OPTIM_WRAPPERS, scope='mmguard', locations=['mmguard.runs'])
TRANSFORMS = Registry('transform', parent=registry.TRANSFORMS, scope='mmguard', locations=['mmguard.checks.arrays'])
