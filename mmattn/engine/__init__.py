"""What extends MMEngine's runs; importing it registers the checkpoint hook, layer decay and the units of sharding."""

from .checkpoints import AtomicCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .sharding import wrap_blocks

__all__ = ['AtomicCheckpointHook', 'LayerDecayOptimWrapperConstructor', 'wrap_blocks']
