"""Reading checkpoint files without running code in them, and comparing their tensors with those of a model."""

from .checkpoint import CheckpointError, read_checkpoint, read_file
from .comparing import Translation, first_names, misfits, take_out

__all__ = ['CheckpointError', 'Translation', 'first_names', 'misfits', 'read_checkpoint', 'read_file', 'take_out']
