"""The names that a Swin Transformer's weights have in four code bases."""

import re
from collections.abc import Iterable

from torch import Tensor

#: parts of names in torchvision's layout, and in that of MMDetection, MMSegmentation and MMPretrain -> in Microsoft's
RENAMES = {
    r'^features\.0\.0\.': 'patch_embed.proj.',
    r'^features\.0\.2\.': 'patch_embed.norm.',
    r'^features\.(\d+)\.': lambda match: _module(int(match[1])),
    r'\.mlp\.0\.': '.mlp.fc1.',
    r'\.mlp\.3\.': '.mlp.fc2.',
    r'^patch_embed\.projection\.': 'patch_embed.proj.',
    r'^stages\.': 'layers.',
    r'\.attn\.w_msa\.': '.attn.',
    r'\.ffn\.layers\.0\.0\.': '.mlp.fc1.',
    r'\.ffn\.layers\.1\.': '.mlp.fc2.',
}


def is_swin(names: Iterable[str]) -> bool:
    """Whether names are those of a Swin Transformer in one of the layouts."""
    pattern = r'(layers|stages|features)\.\d+\..*\battn\.(w_msa\.)?relative_position_bias_table$'  # BEiT has some, too
    return any(re.search(pattern, name) for name in names)


def microsoft_layout(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a Swin Transformer under Microsoft's names, whichever of the layouts they have.

    - timm merges patches at the start of a stage, Microsoft at the end of the one before.
    - torchvision numbers all modules of a sequence.
    - MMDetection, MMSegmentation and MMPretrain have names of their own. Their patch merging reads the channels of
      four patches by channel, then by row and column, Microsoft's by column, then by row, then by channel.

    A tensor of another shape stays as it is.
    """
    renamed = {}
    for name, value in state_dict.items():
        if re.match(r'stages\.\d+\.downsample\.', name) and value.dim() and value.shape[-1] % 4 == 0:
            value = value.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
        for pattern, new in RENAMES.items():
            name = re.sub(pattern, new, name)
        renamed[name] = value
    if not any(name.startswith('layers.0.downsample.') for name in renamed):
        renamed = {re.sub(r'^layers\.(\d+)\.downsample\.', _earlier, name): value for name, value in renamed.items()}
    return renamed


def _module(number: int) -> str:
    """torchvision's features: the embedding, then the blocks of a stage and a patch merging in turn."""
    return f'layers.{number // 2}.blocks.' if number % 2 else f'layers.{number // 2 - 1}.downsample.'


def _earlier(match: re.Match) -> str:
    return f'layers.{int(match[1]) - 1}.downsample.'
