"""How weights of GSA-ResNet are read, and those of a plain ResNet, which GSA-ResNet starts from.

The ResNet may be torchvision's, timm's or MMDetection's, which have the same names.
"""

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from ..layers import GlobalSelfAttention
from ..ops.global_self_attention import fit_table
from ..weights import CheckpointError, Translation, evaluating, fit_tables, noise_image, take_out

LAYOUTS = {'a GSA-ResNet': r'layer\d\.\d+\.attn\.rel_', 'a ResNet': r'layer\d\.\d+\.conv\d\.'}
SOURCE = 'a ResNet'
RECOGNISED = True
HEAD_NAMES = {'fc.': 'head.fc.'}
#: what the names of all tensors of attention contain, and no others: '.attn.', '.attn_after.' and '.attn_scale'
ATTENTION = '.attn'
#: pixels of the images that attention is scaled with: 8 images of 224 x 224
PIXELS = 8 * 224**2


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out the classifier and, of a plain ResNet, the replaced convolutions; fits tables of relative positions to
    another ``img_size``. Attention starts untrained with weights of a plain ResNet, see :func:`scaled_attention`."""
    tensors, own = dict(state_dict), model.state_dict()
    attention = [name for name in own if ATTENTION in name]
    has_attention = any(ATTENTION in name for name in tensors)
    if warm_start and has_attention:
        raise CheckpointError('they have attention: leave warm_start out')
    convolutions = {f'{name.partition(ATTENTION)[0]}.conv2.' for name in attention}  # 'layer2.0.conv2.'
    replaced = [] if has_attention else [name for name in convolutions if f'{name}weight' not in own]
    unbuilt = (f'layer{i + 1}.' for i in range(model.num_built, model.num_stages))
    dropped = take_out(tensors, 'fc.', *unbuilt, *replaced)
    if model.neighbourhood is None:
        tables = [name for name in tensors if name.endswith(('.rel_col', '.rel_row'))]
        fit_tables(tensors, own, tables, partial(_fitted, beyond=model.beyond))
    if has_attention or not attention:
        return Translation(tensors, dropped)
    return Translation(tensors, dropped, attention, partial(scaled_attention, model, attention))


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict | None:
    """The plain ResNet; None if the weights have attention or the model has none."""
    theirs, ours = (any(ATTENTION in name for name in names) for names in (state_dict, model.state_dict()))
    if theirs or not ours:
        return None
    shared = {name: getattr(model, name) for name in model.shared_with_source}
    return dict(type=type(model), depth=model.arch, gsa_stages=(), **shared)


@torch.no_grad()
def scaled_attention(model: nn.Module, names: list[str], state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values of attention for weights of a ResNet: scaled to the variance that the norm after it has learned.

    Attention is cubic in its input, and in evaluation no norm uses the statistics of the batch, so its maps could
    overflow. Images of noise pass through the network, and each attention module on their way is scaled. A single small
    image would not do: a few pixels of the last map say little of the size of a cubic function.

    Args:
        model: the backbone.
        names: of the tensors of attention.
        state_dict: the backbone's, with the weights of the ResNet.
    """
    if not model.bn1.track_running_stats or model.conv1.weight.is_meta:
        return {}
    # On the CPU, so that all processes get the same values.
    state = {
        name: value.to('cpu', torch.float32 if value.is_floating_point() else None, copy=True)
        for name, value in state_dict.items()
    }
    attentions = [(block, getattr(block, 'attn', None)) for block in model.modules()]
    blocks = [block for block, attn in attentions if isinstance(attn, GlobalSelfAttention) and attn.proj is None]
    if not blocks:  # and an own token mixer may not run on the CPU
        return {}
    side = max(model.img_size, 64)  # no map of a single pixel
    images = noise_image(model.in_channels, side, max(min(PIXELS // side**2, 8), 1))
    with ExitStack() as hooks, evaluating(model):
        for block in blocks:
            hooks.enter_context(block.attn.register_forward_hook(partial(_scale, block)))
            if block.attn.bn is not None:
                hooks.enter_context(block.attn.bn.register_forward_pre_hook(_observe))
        torch.func.functional_call(model, state, images)
    return {name: state[name].to(state_dict[name]) for name in names}


def _observe(norm: nn.Module, inputs: tuple[Tensor]) -> None:
    """Set the running statistics of a norm to the size of its input, the same for all channels.

    Under a softmax, or on a small map, the values of a channel are nearly the same at all pixels of an image. Divided
    by their own deviation, those of another image would be huge.
    """
    norm.running_mean.zero_()
    norm.running_var.fill_(inputs[0].square().mean())


def _scale(block: nn.Module, attn: GlobalSelfAttention, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """Scale the weights of attention, and its output, to the variance that the norm after it has learned."""
    factor = block.bn2.running_var.mean().sqrt() / block.pooled(output).std()
    factor = factor if factor > 0 and factor.isfinite() else 1.0
    # Attention is linear in the query, or after a softmax in the value, if the norm inside is scaled too.
    after_softmax = attn.axial_softmax or attn.softmax_queries
    (attn.value if after_softmax else attn.query).weight.mul_(factor)
    if attn.bn is not None:
        attn.bn.running_var.mul_(factor**2)
        for tensor in (attn.bn.weight, attn.bn.bias):
            if after_softmax and tensor is not None:
                tensor.mul_(factor)
    return output * factor


def _fitted(table: Tensor, shape: torch.Size, beyond: str) -> Tensor | None:
    """A table (2L - 1, k) for another L; None if it is not such a table."""
    is_table = table.dim() == 2 and len(table) % 2 == 1 and table.shape[1:] == shape[1:]
    return fit_table(table, shape[0] // 2 + 1, beyond) if is_table else None
