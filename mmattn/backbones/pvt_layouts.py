"""The names that the weights of PVTv2, and of SegFormer's MiT, have in four code bases."""

import re
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor

from ..errors import CheckpointError

#: of any of the layouts: the authors', timm's, OpenMMLab's
PVT = r'(block\d\.\d+\.attn\.sr\.|stages\.\d\.blocks\.\d+\.mlp\.dwconv\.|layers\.\d\.1\.\d+\.attn\.attn\.in_proj)'
#: parts of names in timm's layout, and in that of MMDetection and MMSegmentation -> in the authors'
RENAMES = {
    r'^stages\.(\d)\.blocks\.': lambda match: f'block{int(match[1]) + 1}.',
    r'^stages\.(\d)\.downsample\.': lambda match: f'patch_embed{int(match[1]) + 1}.',
    r'^stages\.(\d)\.norm\.': lambda match: f'norm{int(match[1]) + 1}.',
    r'^patch_embed\.': 'patch_embed1.',
    r'^layers\.(\d)\.0\.projection\.': lambda match: f'patch_embed{int(match[1]) + 1}.proj.',
    r'^layers\.(\d)\.0\.': lambda match: f'patch_embed{int(match[1]) + 1}.',
    r'^layers\.(\d)\.1\.': lambda match: f'block{int(match[1]) + 1}.',
    r'^layers\.(\d)\.2\.': lambda match: f'norm{int(match[1]) + 1}.',
    r'\.attn\.attn\.out_proj\.': '.attn.proj.',
    r'\.ffn\.layers\.0\.': '.mlp.fc1.',
    r'\.ffn\.layers\.1\.': '.mlp.dwconv.',
    r'\.ffn\.layers\.4\.': '.mlp.fc2.',
    r'\.dwconv\.dwconv\.': '.dwconv.',
}


def is_pvt(names: Iterable[str]) -> bool:
    """Whether names are those of a published PVTv2. The backbone's own have one "dwconv", the authors' two."""
    names = list(names)
    own = any(re.match(r'block\d\.\d+\.mlp\.dwconv\.weight', name) for name in names)
    return not own and any(re.match(PVT, name) for name in names)


def pvt_layout(state_dict: dict[str, Tensor], detail: bool) -> dict[str, Tensor]:
    """The weights of a PVTv2 under the names of :class:`mmattn.backbones.ShuntedTransformer`.

    - OpenMMLab has query, key and value in one matrix, and the linear layers of the feed-forward layer as 1 x 1
      convolutions.
    - timm and OpenMMLab number the stages from 0.

    Args:
        detail: whether the feed-forward layers add their input to the depth-wise convolution, as Shunted's do. Then the
            filters are PVTv2's without the identity, which computes the same.

    Raises:
        CheckpointError: naming a tensor of another shape that has to be split.
    """
    tensors = {}
    for name, value in state_dict.items():
        for pattern, new in RENAMES.items():
            name = re.sub(pattern, new, name)
        if '.attn.attn.in_proj_' in name:
            place, kind = name.split('attn.in_proj_')
            if value.dim() != (2 if kind == 'weight' else 1) or len(value) % 3:
                raise CheckpointError(f'a tensor is of another shape: {name} {tuple(value.shape)}')
            third = len(value) // 3
            tensors[f'{place}q.{kind}'], tensors[f'{place}kv.{kind}'] = value.split((third, 2 * third))
            continue
        if re.search(r'\.mlp\.fc\d\.weight$', name) and value.shape[2:] == (1, 1):
            value = value.flatten(1)
        if detail and name.endswith('.mlp.dwconv.weight') and value.shape[1:] == (1, 3, 3):
            value = value - F.pad(value.new_ones(1, 1, 1, 1), (1, 1, 1, 1))
        tensors[name] = value
    return tensors
