"""How weights of NAT and DiNAT are read: the authors' classifiers, detectors and segmentors."""

from torch import Tensor, nn

from ..layers import NeighbourhoodAttention
from ..ops.neighbourhood.reference import MOST_NEIGHBOURS
from ..weights import Translation, renamed
from .stages_weights import place_outputs, start_attention

LAYOUTS = {'a NAT or DiNAT': r'levels\.\d+\.blocks\.\d+\.attn\.rpb'}
SOURCE = 'a NAT or DiNAT'


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Takes the authors' names of layer scales, and places the norms of the outputs. With a warm start, token mixers
    take what they can of neighbourhood attention by their method ``warm_start``."""
    tensors = renamed(state_dict, {r'(levels\.\d+\.blocks\.\d+\.)gamma([12])$': r'\1ls\2.gamma'})
    dropped, fresh = place_outputs(tensors, model)
    if warm_start:
        dropped += start_attention(tensors, model)
    return Translation(tensors, dropped, fresh)


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict:
    """NAT with the size of neighbourhoods that its tables show. The dilations are those of the model."""
    tables = [
        value.shape[-1]
        for name, value in state_dict.items()
        if name.endswith('.attn.rpb') and value.dim() == 3 and value.shape[-1] in range(1, 2 * MOST_NEIGHBOURS, 4)
    ]  # Loading refuses others.
    plain = dict(type='NeighbourhoodAttention', kernel_size=(max(tables, default=13) + 1) // 2)
    attention = [plain] * model.num_stages
    for i, stage in enumerate(model.levels):
        attns = [block.attn for block in stage.blocks]
        attention[i] = [
            dict(plain, dilation=attn.dilation) if isinstance(attn, NeighbourhoodAttention) else plain for attn in attns
        ]
    arch = {key: model.arch[key] for key in ('embed_dim', 'depths', 'num_heads', 'mlp_ratio', 'layer_scale')}
    sizes = dict(in_channels=model.in_channels, out_indices=model.out_indices)
    return dict(type='NAT', arch=arch, attention=attention, **sizes)
