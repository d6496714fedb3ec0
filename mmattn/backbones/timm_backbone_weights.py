"""How weights of timm's models are read: timm's own, and those of others that timm translates."""

import sys

import torch
from torch import Tensor, nn

from ..weights import Translation, take_out


def timm_model(name: str, in_channels: int, num_classes: int = 0, **arguments) -> nn.Module:
    """A model of timm without weights. Its classifier has ``num_classes``; 0: there is none."""
    import timm  # it takes seconds

    fixed = dict(in_chans=in_channels, num_classes=num_classes, pretrained=False, checkpoint_path='')
    return timm.create_model(name, **fixed, **arguments)


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out the classifier, the last norm and layers that are not built. timm's ``checkpoint_filter_fn`` of the
    model, where it has one, takes the names of its authors and fits tables of positions to ``img_size``."""
    own = model.state_dict()
    if any(name in own for name in state_dict):
        return Translation(dict(state_dict))
    with torch.device('meta'):
        whole = timm_model(num_classes=1, **model.arguments)
    translate = getattr(sys.modules[type(whole).__module__], 'checkpoint_filter_fn', None)
    tensors = dict(state_dict)
    if translate is not None:
        try:
            tensors = dict(translate(tensors, whole))
        except Exception:  # of other models, any kind; their tensors are refused by their names
            tensors = dict(state_dict)
    dropped = take_out(tensors, *(name for name in whole.state_dict() if f'model.{name}' not in own))
    return Translation({f'model.{name}': value for name, value in tensors.items()}, dropped)
