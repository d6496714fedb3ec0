"""What keeps a run safe. Importing it registers the checkpoint hook, and training in bfloat16 on a CPU."""

from .checkpoints import AtomicCheckpointHook
from .half_precision import BFloat16OptimWrapper

__all__ = ['AtomicCheckpointHook', 'BFloat16OptimWrapper']
