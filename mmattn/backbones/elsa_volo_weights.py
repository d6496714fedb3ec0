"""How weights of VOLO's release are read, which ELSA-VOLO starts from."""

import torch
from torch import Tensor, nn

from ..layers import Block
from ..ops.resize import interpolated
from ..weights import Translation, fit_tables, take_out

LAYOUTS = {'a VOLO': r'network\.0\.\d+\.attn\.v\.', 'an ELSA-VOLO': r'network\.0\.\d+\.attn\.pre_proj\.'}
SOURCE = 'a VOLO'
HEAD_NAMES = {
    'post_network.': 'head.post_network.',
    'cls_token': 'head.cls_token',
    'norm.': 'head.norm.',
    'head.': 'head.fc.',
    'aux_head.': 'head.aux_head.',
}
#: the table of positions, ``pos_embed`` in VOLO's release
POSITIONS = 'network.1.pos_embed'


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out the classifier and stages that are not built, and resizes the table of positions. A checkpoint of a
    backbone without a final norm leaves that norm untrained.

    A warm start takes a VOLO without the attentions whose tensors have other names than those here.
    """
    tensors, own = dict(state_dict), model.state_dict()
    if 'pos_embed' in tensors:
        tensors[POSITIONS] = tensors.pop('pos_embed')
    unbuilt = (f'network.{i}.' for i in range(len(model.network), model.num_stages + 1))
    no_norm = ['norm.'] if isinstance(model.norm, nn.Identity) else []
    dropped = take_out(tensors, 'post_network.', 'cls_token', 'head.', 'aux_head.', *unbuilt, *no_norm)
    fresh = []
    if 'norm.weight' in own and not any(name.startswith('norm.') for name in tensors):
        fresh = ['norm.weight', 'norm.bias']
    fit_tables(tensors, own, [POSITIONS], _fitted)
    if warm_start:
        for prefix in (f'{name}.attn.' for name, part in model.named_modules() if isinstance(part, Block)):
            mine, given = ({name for name in names if name.startswith(prefix)} for names in (own, tensors))
            if mine != given:
                dropped += take_out(tensors, prefix)
                own = {name: value for name, value in own.items() if name not in mine}
        for name in own:
            if name not in fresh and not name.endswith('num_batches_tracked'):
                tensors[name]  # raises the error
    return Translation(tensors, dropped, fresh)


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict:
    """VOLO, with the table of positions that it was trained with."""
    sides = [state_dict[name].shape[1] for name in ('pos_embed', POSITIONS) if name in state_dict]
    shared = {name: getattr(model, name) for name in ('arch', 'final_norm', 'norm_cfg', 'in_channels', 'out_indices')}
    return dict(type='ELSAVOLO', attention=None, img_size=16 * max(sides, default=14), **shared)


def _fitted(table: Tensor, shape: torch.Size) -> Tensor | None:
    """A table of positions (1, h, w, C) -> (1, height, width, C); None if it is not such a table."""
    if table.dim() != 4 or not table.numel() or (table.shape[0], table.shape[3]) != (1, shape[3]):
        return None
    return interpolated(table.permute(0, 3, 1, 2), *shape[1:3]).permute(0, 2, 3, 1)
