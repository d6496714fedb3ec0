"""What the backbones have in common: variants, outputs, frozen stages, checkpointing, depths of layers."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_arch, check_flags, check_whole, stage_numbers
from ..errors import InputError, warn
from ..layers.global_self_attention import DEFAULT_SIDE
from ..ops.recompute import recompute
from ..ops.tracing import is_tracing
from ..ops.transpose import transposed
from ..weights import StrictModule
from . import other_weights
from .layer_decay import layer_depths


class Backbone(StrictModule):
    """Base class of the backbones. For their weights, see :class:`mmattn.weights.StrictModule`.

    A subclass lists its variants in ``arch_zoo`` and its modules in ``stage_modules``, computes its maps in
    ``stage_outputs``, where every block passes through ``run``, names their norms in ``output_norm``, and says in
    ``weights`` where checkpoints of other layouts are read.

    Args:
        channels: channels of the map of every stage; subclasses pass it on from their architecture.
        strides: strides of these maps, in pixels of the image; by default 4, 8, 16 and so on.
        out_indices: stages whose maps are returned, ascending, counted from 0. Stages after the last one are not built.
        in_channels: channels of the image.
        frozen_stages: freezes the stem (0) and that many stages: no gradients, always in evaluation mode, output norms
            included. -1 freezes nothing. Setting the attribute later freezes other stages, and trains the rest again.
        with_cp: compute blocks again in the backward pass instead of keeping their activations in memory.
        init_cfg: MMEngine's initialisation config; ``dict(type='Pretrained', checkpoint=...)`` takes a released file.

    All backbones also have these arguments:

    - ``drop_path_rate``: stochastic depth of the last block; the rate rises linearly from 0 at the first block.
    - ``norm_cfg``, of backbones with batch norms: ``dict(type='BN')`` or ``dict(type='SyncBN')``, see
      :func:`mmattn.layers.batch_norm`.
    - ``norm_eval``, of backbones with batch norms: they always use, and never update, their running statistics.

    Attributes:
        channels, strides: of the maps of all stages.
        out_channels: channels of the returned maps.
        settings: what checkpoints note. Not among them are ``out_indices``, what matters in training only, and what a
            checkpoint is fitted to when it is loaded.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    #: name -> architecture. ``cls(arch=name)`` builds it; a dict given as ``arch`` has the same keys
    arch_zoo: dict[str | int, dict] = {}
    #: name of the argument that takes the architecture
    arch_argument = 'arch'
    weights = other_weights
    read_settings = staticmethod(other_weights.read_settings)
    norm_eval = False
    #: what to do where positional attention ends before the image
    longer_positions = "give GlobalSelfAttention rel_pos_length, the longest side of its map, or beyond='stretch'"

    def __init__(
        self,
        channels: Sequence[int],
        out_indices: Sequence[int],
        in_channels: int = 3,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
        strides: Sequence[int] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.num_stages = len(channels)
        self.channels = tuple(channels)
        self.strides = tuple(4 * 2**i for i in range(self.num_stages)) if strides is None else tuple(strides)
        self.out_indices = stage_numbers('out_indices', out_indices, self.num_stages)
        if not self.out_indices or list(self.out_indices) != sorted(set(self.out_indices)):
            raise ValueError(f'out_indices must be ascending, at least one, not {self.out_indices}')
        check_whole('in_channels', in_channels)
        self.in_channels = in_channels
        self.out_channels = tuple(channels[i] for i in self.out_indices)
        self._frozen_stages = self._checked_frozen_stages(frozen_stages)  # subclasses call train() at their end
        self._frozen_parameters: list[str] = []
        check_flags(with_cp=with_cp)
        self.with_cp = with_cp
        self._seen: set[str] = set()  # shared with copies by DataParallel

    @classmethod
    def variants(cls) -> Iterator[tuple[str, 'Backbone']]:
        for arch in cls.arch_zoo:
            with torch.device('meta'):
                backbone = cls(**{cls.arch_argument: arch})
            yield f'{cls.__name__}({cls.arch_argument}={arch!r})', backbone

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        """The architecture of a name in ``arch_zoo``, or of a dict with the same keys.

        Raises:
            ValueError: if the name is unknown, the dict lacks a key or has an unknown one, or a value is impossible.
        """
        argument = f'{cls.arch_argument} of {cls.__name__}'
        if not isinstance(arch, dict):
            if arch not in list(cls.arch_zoo):
                raise ValueError(
                    f'{argument} must be one of {", ".join(map(str, cls.arch_zoo))} or a dict, not {arch!r}'
                )
            return dict(cls.arch_zoo[arch])
        check_arch(cls.arch_argument, argument, arch, list(cls.arch_zoo.values()))
        return dict(arch)

    @property
    def num_built(self) -> int:
        """The number of stages up to the last one whose map is returned."""
        return self.out_indices[-1] + 1

    @property
    def frozen_stages(self) -> int:
        return self._frozen_stages

    @frozen_stages.setter
    def frozen_stages(self, number: int) -> None:
        self._frozen_stages = self._checked_frozen_stages(number)
        parameters = dict(self.named_parameters())
        for name in self._frozen_parameters:
            if name in parameters:  # fuse_conv_bn and others remove some
                parameters[name].requires_grad_(True)
        self._frozen_parameters = []
        self.train(self.training)

    def _checked_frozen_stages(self, number: int) -> int:
        check_whole('frozen_stages', number, -1)
        if number > self.num_stages:
            raise ValueError(f'frozen_stages must be from -1 to {self.num_stages}, not {number}')
        return number

    def stage_modules(self) -> list[list[nn.Module]]:
        """The modules of the stem, then those of each stage that is built, output norm included."""
        raise NotImplementedError

    @property
    def stem_tensors(self) -> list[str]:
        stem = {parameter for module in self.stage_modules()[0] for parameter in module.parameters()}
        return [name for name, parameter in self.named_parameters() if parameter in stem]

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        """x: (B, in_channels, H, W) -> after each stage that is built, before its output norm, (B, h, w, C). A stage is
        computed when its output is asked for."""
        raise NotImplementedError

    def output_norm(self, stage: int) -> str:
        """Name of the module that norms the map of a stage; '' if there is none."""
        return ''

    def output_map(self, stage: int, x: Tensor, norm: bool = True) -> Tensor:
        """The output (B, h, w, C) of a stage -> its map (B, C, h, w), normed if the stage has an output norm.

        It is contiguous: MMCV's RoIAlign reads a channels-last map as if it were contiguous, and returns wrong values.
        """
        name = self.output_norm(stage) if norm else ''
        x = getattr(self, name)(x) if name else x
        return transposed(x.flatten(1, 2)).unflatten(2, x.shape[1:3])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output i, (B, C_i, ceil(H / s_i), ceil(W / s_i)), s_i the stride."""
        return self.returned_maps(self.stage_outputs(x))

    def returned_maps(self, outputs: Iterator[Tensor]) -> tuple[Tensor, ...]:
        """Outputs of all stages that are built -> the maps of those in ``out_indices``."""
        return tuple(self.output_map(i, x) for i, x in enumerate(outputs) if i in self.out_indices)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for layer-wise decay of the learning rate. MMPretrain's Swin has the same depths.

        The stem has depth 0. The blocks have the depths 1, 2 and so on. A layer between two stages has the depth of the
        block before it. Layers after the last block have the largest depth, and so have all output norms whose result
        no block takes.

        Args:
            param_name: name of the parameter in the model.
            prefix: start of the names of the backbone's parameters in the model. Parameters with other names, such as
                those of the heads, have the largest depth.

        Returns:
            The depth, and the number of depths.
        """
        depths, count = layer_depths(self)
        in_backbone = param_name.startswith(prefix)
        return depths.get(param_name.removeprefix(prefix), count - 1) if in_backbone else count - 1, count

    def check_images(self, x: Tensor) -> None:
        """Check the input of ``stage_outputs``.

        Raises:
            InputError: if x cannot be a batch of images; there may be none in it.
        """
        if x.dim() != 4 or x.shape[1] != self.in_channels or x.shape[2] < 1 or x.shape[3] < 1:
            raise InputError(
                f'{type(self).__name__} takes images (B, {self.in_channels}, H, W) with H and W of at least 1, not '
                f'{tuple(x.shape)}'
            )
        if not x.is_floating_point():
            raise InputError(f'{type(self).__name__} takes images of floating-point numbers, not {x.dtype}')
        # Other floats may differ from the weights, under autocast. A copy by DataParallel has no parameters.
        if x.dtype == torch.float64 and (own := next(self.parameters(), x).dtype) != x.dtype:
            raise InputError(f'{type(self).__name__} has weights of {own} and takes no images of {x.dtype}: cast them')
        if not is_tracing() and max(x.shape[2:]) > DEFAULT_SIDE and 'large image' not in self._seen:
            self._seen.add('large image')
            if any(getattr(module, 'ends_by_default', False) for module in self.modules()):
                warn(
                    f'{type(self).__name__}: attention by position ends at {DEFAULT_SIDE} pixels, but an image has '
                    f'{x.shape[2]} x {x.shape[3]}: {self.longer_positions}'
                )

    def run(self, block: nn.Module, *inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        """``block(*inputs)``; with ``with_cp``, its activations are computed again in the backward pass."""
        return recompute(block, *inputs) if self.with_cp and self.training else block(*inputs)

    def set_backend(self, backend: str | None) -> None:
        """Choose the path that the operators of all layers take, for comparisons.

        Args:
            backend: 'reference' or another one of the operators in ``mmattn.ops``; None chooses the fastest.

        Raises:
            ValueError: if no layer has an operator with backends. An unknown name is refused in the next forward pass.
        """
        layers = [module for module in self.modules() if hasattr(module, 'backend')]
        if not layers:
            raise ValueError(f'this {type(self).__name__} has no layer whose operator has backends')
        for layer in layers:
            layer.backend = backend

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        frozen = [module for modules in self.stage_modules()[: self.frozen_stages + 1] for module in modules]
        for module in frozen:
            module.eval()
        parameters = {parameter for module in frozen for parameter in module.parameters() if parameter.requires_grad}
        if parameters:  # Names, because to_empty() and others replace parameters.
            self._frozen_parameters += [name for name, parameter in self.named_parameters() if parameter in parameters]
        for parameter in parameters:
            parameter.requires_grad_(False)
        return self
