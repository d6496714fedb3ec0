"""What extends MMEngine's runs; importing it registers the checkpoint hook and the units of sharding."""

from .checkpoints import AtomicCheckpointHook
from .sharding import wrap_blocks

__all__ = ['AtomicCheckpointHook', 'wrap_blocks']
