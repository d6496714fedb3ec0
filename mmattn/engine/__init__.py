"""What extends MMEngine's runs; importing it registers the checkpoint hook and the strategy of sharded training."""

from .checkpoints import AtomicCheckpointHook
from .sharding import ShardedStrategy, wrap_blocks

__all__ = ['AtomicCheckpointHook', 'ShardedStrategy', 'wrap_blocks']
