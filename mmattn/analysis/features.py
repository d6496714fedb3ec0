"""Feature norms by depth, effective receptive fields, and the subspaces of the projections."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ..backbones import TimmBackbone
from ..backbones.base import Backbone
from ..errors import InputError
from ..layers import (
    Block,
    GroupedLinear,
    MeanShiftAttention,
    MeanShiftWindowAttention,
    NeighbourhoodAttention,
    SelfAttention,
    WindowAttention,
)

#: attention layers with one projection ``qkv`` to queries, keys and values, and ``proj`` back
WITH_QKV = NeighbourhoodAttention, SelfAttention, WindowAttention

#: class of a backbone of MMDetection, MMSegmentation or MMPretrain -> its blocks by stage. They are called with tokens
#: (B, H * W, C) and (H, W), and their attention is ``attn``.
OTHERS: dict[str, Callable[[nn.Module], list[list[nn.Module]]]] = {
    'SwinTransformer': lambda backbone: [list(stage.blocks) for stage in backbone.stages],
    **dict.fromkeys(
        ('PyramidVisionTransformer', 'MixVisionTransformer'),  # PVT, PVTv2 and MiT
        # PVT's positions are among its blocks.
        lambda backbone: [[unit for unit in stage[1] if hasattr(unit, 'attn')] for stage in backbone.layers],
    ),
}


def blocks_of(backbone: nn.Module) -> list[list[nn.Module]]:
    """The blocks of each stage, in the order of the forward pass. Of a ViT, each block is a stage.

    Raises:
        InputError: if it is neither a backbone of mmattn nor one of ``OTHERS``.
    """
    if isinstance(backbone, Backbone) and not isinstance(backbone, TimmBackbone):
        return [
            [unit for part in stage for unit in part.modules() if getattr(unit, 'is_block', False)]
            for stage in backbone.stage_modules()[1:]
        ]
    for name in openmmlab_classes(backbone):
        if name in OTHERS:
            return OTHERS[name](backbone)
    raise InputError(
        'only backbones of mmattn, and Swin Transformer, PVT, PVTv2 and MiT of OpenMMLab can be analysed, not '
        f'{type(backbone).__name__}'
    )


def openmmlab_classes(module: nn.Module) -> list[str]:
    """Names of the classes of MMDetection, MMSegmentation and MMPretrain that a module is an instance of."""
    packages = ('mmdet.', 'mmseg.', 'mmpretrain.')
    return [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith(packages)]


def map_of(unit: nn.Module, inputs: tuple, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Features before or after a block, from what it gets (``inputs``) or returns, as (B, H, W, C)."""
    x = x[0] if isinstance(x, tuple) else x  # without prefix tokens
    if x.dim() == 3:  # a block of OTHERS
        return x.unflatten(1, inputs[1])
    return x if isinstance(unit, Block) else x.permute(0, 2, 3, 1)  # else the maps of a ResNet


@torch.no_grad()
def feature_norms(backbone: nn.Module, images: Tensor) -> Tensor:
    """Mean L2 norm of the features of each image: the input of the first block, then the output of every block.

    This is figure 4 of "Mean-Shift Feature Transformer". The first number is of the patch embedding, or of the stem.

    Args:
        backbone: in evaluation mode.
        images: (B, C, H, W).

    Returns:
        (1 + blocks, B).
    """
    norms = []

    def keep(unit: nn.Module, inputs: tuple, x: Tensor | tuple[Tensor, Tensor]) -> None:
        norms.append(map_of(unit, inputs, x).float().norm(dim=-1).mean((1, 2)))

    units = [unit for stage in blocks_of(backbone) for unit in stage]
    with ExitStack() as hooks:
        hooks.enter_context(units[0].register_forward_pre_hook(lambda unit, inputs: keep(unit, inputs, inputs[0])))
        for unit in units:
            hooks.enter_context(unit.register_forward_hook(keep))
        backbone(images)
    return torch.stack(norms)


def receptive_field(backbone: nn.Module, image: Tensor, stage: int) -> tuple[Tensor, tuple[int, int]]:
    """The effective receptive field of the centre of a stage's last map, for one image.

    It is the gradient of that position, summed over the channels, with respect to the image, as in "Understanding the
    Effective Receptive Field in Deep Convolutional Neural Networks" (Luo et al., 2016): its absolute values, summed
    over the channels of the image. The output norm is left out: a LayerNorm makes the sum of the channels constant.

    Args:
        backbone: in evaluation mode.
        image: (1, C, H, W).
        stage: counted from 0.

    Returns:
        (H, W), and the row and column of the image at the centre of that position.
    """
    unit = blocks_of(backbone)[stage][-1]
    found = []
    image = image.detach().requires_grad_()
    with unit.register_forward_hook(lambda *arguments: found.append(map_of(*arguments))), torch.enable_grad():
        backbone(image)
        (x,) = found
        row, column = x.shape[1] // 2, x.shape[2] // 2
        (gradient,) = torch.autograd.grad(x[0, row, column].sum(), image)
    stride = stride_of(image.shape[2:], x.shape[1:3], getattr(backbone, 'strides', ()))
    centre = tuple(min(int((i + 0.5) * stride), size - 1) for i, size in zip((row, column), image.shape[2:]))
    return gradient[0].abs().sum(0), centre


def side_of_share(field: Tensor, centre: tuple[int, int], share: float) -> int:
    """The side of the smallest square around a pixel that holds a share of the sum of a map (H, W)."""
    rows, columns = ((torch.arange(size) - middle).abs() for size, middle in zip(field.shape, centre))
    distance = torch.maximum(rows[:, None], columns).flatten()
    within = torch.bincount(distance, field.detach().double().cpu().flatten()).cumsum(0)
    return 2 * int((within < share * within[-1]).sum()) + 1


def stride_of(image: tuple[int, int], shape: tuple[int, int], known: Sequence[int] = ()) -> int:
    """The stride s of a map of sides ceil(side / s), of those that fit: one of the known strides of a backbone, or else
    a power of two, or else the smallest."""
    strides = range(1, max(image) + 1)
    fitting = [s for s in strides if all(-(-side // s) == length for side, length in zip(image, shape))]
    fitting.sort(key=lambda s: (s not in known, s & (s - 1) != 0))
    return next(iter(fitting), max(1, round(image[0] / shape[0])))


def subspace_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Equation 13 of "Mean-Shift Feature Transformer": the mean squared cosine of the canonical angles, in [0, 1].

    Two random subspaces have n / d on average.

    Args:
        x, y: (..., d, n) matrices, whose columns span the subspaces; n <= d.

    Returns:
        (...).
    """
    bases = []
    for matrix in (x, y):
        u, size, _ = torch.linalg.svd(matrix.double(), full_matrices=False)
        # A matrix of lower rank spans fewer dimensions: the other columns of u are arbitrary.
        bases.append(u * (size > size.amax(-1, True).clamp(min=1e-30) * 1e-6).unsqueeze(-2))
    return (bases[0].transpose(-1, -2) @ bases[1]).square().sum((-1, -2)) / x.shape[-1]


def projections(layer: nn.Module) -> dict[str, Tensor] | None:
    """The matrices of equation 13 of an attention layer: letter of the projection -> (heads, d, n), d channels of the
    features and n of a head. The weight W projects back; its columns are those of its head.

    None if there are no such matrices: ELSA's queries have no heads, Shunted's keys are of other tokens than its
    queries.
    """
    layer = layer.attn if isinstance(layer, MeanShiftWindowAttention) else getattr(layer, 'w_msa', layer)
    if isinstance(layer, MeanShiftAttention):
        weight = layer.pre_proj.dense_weight() if isinstance(layer.pre_proj, GroupedLinear) else layer.pre_proj.weight
        inner = dict(zip(layer.matrices, weight.chunk(len(layer.matrices))))
        found = {name: inner[letter] for name, letter in zip('QKVP', layer.sharing[:-1])}
        found['W'] = (layer._tied_weight() if layer.post_proj is None else layer.post_proj.weight).t()
    elif isinstance(layer, WITH_QKV) or 'WindowMSA' in openmmlab_classes(layer):  # Swin's
        q, k, v = layer.qkv.weight.chunk(3)
        found = dict(Q=q, K=k, V=v, W=layer.proj.weight.t())
    else:
        return None
    return {name: matrix.detach().unflatten(0, (layer.num_heads, -1)).mT for name, matrix in found.items()}
