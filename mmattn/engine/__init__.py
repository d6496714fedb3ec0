"""What extends MMEngine's runs: importing it registers the checkpoint hook, layer decay and sharded training."""

from .checkpoints import AtomicCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .sharding import ShardedStrategy, wrap_blocks

__all__ = ['AtomicCheckpointHook', 'LayerDecayOptimWrapperConstructor', 'ShardedStrategy', 'wrap_blocks']
