"""MSF-Swin, the Swin Transformer with mean-shift attention in its windows.

"Mean-Shift Feature Transformer", CVPR 2024
"""

from mmengine.registry import MODELS
from torch import Tensor

from ..layers import MeanShiftAttention
from ..weights import CheckpointError, Translation, take, take_out
from .swin import SwinFrame, is_table


@MODELS.register_module()
class MSFSwin(SwinFrame):
    """MSF-Swin (section 3.2 and table 5): Swin Transformer whose (shifted-)window attention is mean-shift attention.

    The paper does not mention the relative position bias. Here it is Swin's: it is added to the logits.

    Args:
        arch: 'tiny', 'small', or a dict with ``embed_dim``, ``depths``, ``num_heads``.
        attention: 'msf'; or 'residual', 'gauss', 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`. 'plain' is Swin Transformer itself.
        sharing: which projections share a matrix, see there; by default none.
        groups: groups of the input projections.
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as in Swin; in the paper they have none.
        kwargs: further arguments of :class:`mmattn.backbones.SwinFrame`, except ``stages``. Errors are the same.

    ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the weights of a Swin Transformer,
    as Microsoft released them or as timm has them. With ``attention='plain', proj_bias=True`` the backbone is a Swin
    Transformer and takes them strictly, without ``warm_start``.

    Example:
        >>> import torch
        >>> from mmattn.backbones import MSFSwin
        >>> maps = MSFSwin(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {name: SwinFrame.arch_zoo[name] for name in ('tiny', 'small')}
    warm_start_from = "a Swin Transformer in Microsoft's or timm's layout"
    head_names = {'head.fc.': 'head.fc.', 'head.': 'head.fc.'}  # timm's, Microsoft's

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attention: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        **kwargs,
    ) -> None:
        settings = dict(attention=attention, sharing=sharing, groups=groups, group_mode=group_mode, proj_bias=proj_bias)
        super().__init__(arch, dict(type='MeanShiftWindow', **settings), **kwargs)
        self.settings = self._attention(0, 0).settings

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """No weights of MSF-Swin were released.

        The plain form with biases is a Swin Transformer, and takes its weights strictly. With a warm start every form
        takes them. Tensors that a Swin Transformer does not have start untrained.
        """
        is_swin = (
            self.settings == dict(attention='plain', sharing='QKVW') and self._attention(0, 0).pre_proj.bias is not None
        )
        if not warm_start and not (is_swin and any('.relative_position_bias_table' in name for name in state_dict)):
            return super().from_release(state_dict)
        try:
            tensors, dropped = self._from_swin(state_dict)
        except KeyError as error:
            if warm_start:
                raise
            raise CheckpointError(f'the weights of a Swin Transformer lack {error}') from None
        translation = super().from_release(tensors)
        translation.dropped += dropped
        return translation

    def _attention(self, stage: int, block: int) -> MeanShiftAttention:
        return self.layers[stage].blocks[block].attn.attn

    def _from_swin(self, state_dict: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Weights of a Swin Transformer under the backbone's names, and the names of those that have no place.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
            CheckpointError: naming a tensor of another shape that has to be rearranged.
        """
        left, start = dict(state_dict), {}

        def move(prefix: str, source: str, *modules: str) -> None:
            for name in (f'{module}.{kind}' for module in modules for kind in ('weight', 'bias')):
                start[f'{prefix}{name}'] = left.pop(f'{source}{name}')

        move('patch_embed.', 'patch_embed.', 'proj', 'norm')
        merging_first = 'layers.0.downsample.norm.weight' not in left  # timm: at the start of the next stage
        for i, stage in enumerate(self.layers):
            for j, block in enumerate(stage.blocks):
                prefix = f'layers.{i}.blocks.{j}.'
                move(prefix, prefix, 'norm1', 'norm2', 'mlp.fc1', 'mlp.fc2')
                for name, value in self._attention(i, j).warm_start(left, f'{prefix}attn.').items():
                    start[f'{prefix}attn.attn.{name}'] = value
                name, shape = f'{prefix}attn.relative_position_bias_table', block.attn.rb.shape
                if not is_table(left[name].shape[::-1], shape):
                    take(left, name, *shape[::-1])  # raises the error
                # Swin's table is indexed by query minus key, ours by key minus query.
                start[f'{prefix}attn.rb'] = left.pop(name).t().flip(1)
            if stage.downsample is not None:
                source = f'layers.{i + merging_first}.downsample.'
                move(f'layers.{i}.downsample.', source, 'norm')
                start[f'layers.{i}.downsample.reduction.weight'] = left.pop(f'{source}reduction.weight')

        blocks = [f'layers.{i}.blocks.{j}.' for i, stage in enumerate(self.layers) for j in range(len(stage.blocks))]
        computed = ('attn.relative_position_index', 'attn.qkv.', 'attn.proj.', 'attn_mask')
        dropped = take_out(left, *(f'{block}{name}' for block in blocks for name in computed))
        return {**left, **start}, dropped
