"""What keeps a run safe. Importing it registers the checkpoint hook."""

from .checkpoints import AtomicCheckpointHook

__all__ = ['AtomicCheckpointHook']
