"""How weights of MSF-ViT's release are read. Everything else is as in plain ViTs."""

import re

from torch import Tensor, nn

from ..weights import Translation, take_out
from . import vit_weights
from .vit_weights import SOURCE, source_config  # noqa: F401

LAYOUTS = {'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.|(?<!\d\.)blocks\.\d+\.attn\.pre_proj\.'}
HEAD_NAMES = {'linear_head.0.': 'head.norm.', 'linear_head.1.': 'head.fc.'}
#: pattern in a name of the release -> ours
RELEASED_NAMES = {
    r'^to_patch_embedding\.1\.': 'patch_embed.patch_norm.',
    r'^to_patch_embedding\.2\.': 'patch_embed.proj.',
    r'^to_patch_embedding\.3\.': 'patch_embed.norm.',
    r'^transformer\.layers\.(\d+)\.0\.norm\.': r'blocks.\1.norm1.',
    r'^transformer\.layers\.(\d+)\.0\.to_qkvp?\.': r'blocks.\1.attn.pre_proj.',
    r'^transformer\.layers\.(\d+)\.0\.to_out\.': r'blocks.\1.attn.post_proj.',
    r'^transformer\.layers\.(\d+)\.1\.net\.0\.': r'blocks.\1.norm2.',
    r'^transformer\.layers\.(\d+)\.1\.net\.1\.': r'blocks.\1.mlp.fc1.',
    r'^transformer\.layers\.(\d+)\.1\.net\.3\.': r'blocks.\1.mlp.fc2.',
}


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """A release has other names, a classifier ``linear_head`` and no final norm."""
    if warm_start:
        return vit_weights.read(state_dict, model, warm_start)
    tensors = dict(state_dict)
    for pattern, ours in RELEASED_NAMES.items():
        tensors = {re.sub(pattern, ours, name): value for name, value in tensors.items()}
    head = take_out(tensors, 'linear_head.')
    translation = vit_weights.read(tensors, model)
    translation.dropped += head
    return translation
