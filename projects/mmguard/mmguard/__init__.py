"""Guards for MMEngine runs: what is wrong with a config, its data or its weights is refused in one sentence before the
work begins, and nothing is lost when a run is killed.

It knows no model. Importing it registers its hook for checkpoints, and training in bfloat16 on a CPU.
"""

from .packages import require

require('mmengine', 'mmguard')

from .runs import AtomicCheckpointHook, BFloat16OptimWrapper  # noqa: E402

__version__ = '0.1.0'
__all__ = ['AtomicCheckpointHook', 'BFloat16OptimWrapper', '__version__']
