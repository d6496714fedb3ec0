"""How weights of TransNeXt are read: the author's classifiers, detectors and segmentors."""

from torch import Tensor, nn

from ..weights import Translation, renamed
from .shunted_weights import leave_out


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out the classifier and the stages that are not built."""
    tensors = renamed(state_dict, {r'\.dwconv\.dwconv\.': '.dwconv.'})
    return Translation(tensors, leave_out(tensors, model))
