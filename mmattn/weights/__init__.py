"""Reading released checkpoints, strictly.

A released file is used by path and nothing else. Whatever a release and a backbone do not agree on stops the run,
except what has no counterpart by design (the classifier, the output norms), which is logged.
"""

from .checkpoint import CheckpointError, read_checkpoint, read_file
from .strict import StrictWeights, load_pretrained

__all__ = ['CheckpointError', 'StrictWeights', 'load_pretrained', 'read_checkpoint', 'read_file']
