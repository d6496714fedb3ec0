"""Any backbone of timm, https://github.com/huggingface/pytorch-image-models."""

import inspect
from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_flags, check_whole
from ..errors import InputError
from ..weights import is_setting, timm_release
from . import timm_backbone_weights
from .base import Backbone
from .timm_backbone_weights import timm_model

#: timm's arguments that let a model take images of any size
ANY_SIZE = dict(dynamic_img_size=True, strict_img_size=False)


@MODELS.register_module()
class TimmBackbone(Backbone):
    """A model of timm, such as ConvNeXt, EVA, Hiera, FastViT, Swin or ResNet, without its classifier.

    Its maps are those of timm's ``features_only=True``: outputs of stages, or of blocks of a ViT, that no norm follows.
    timm does the work; weights are loaded as strictly as those of other backbones here. They can be timm's own by
    ``init_cfg=dict(type='Pretrained', checkpoint='timm:NAME')``, a file of the whole model, or one of its authors that
    timm translates. Layer-wise decay of the learning rate takes timm's groups of layers.

    Args:
        name: of the model in timm, as 'convnext_tiny' or 'convnext_tiny.dinov3_lvd1689m'. The part after the dot says
            which weights it will have, and so how images must be normalised: ``model.pretrained_cfg`` has mean and std.
        out_indices: maps that are returned, ascending, counted from 0 as in timm's ``feature_info``; by default the
            last one of each stride of 4 and more.
        frozen_stages: freezes the stem (0) and that many groups of layers, as timm's ``group_matcher(coarse=True)`` has
            them: stages of most models, blocks of ViTs and Hiera.
        norm_eval: batch norms always use, and never update, their running statistics.
        arguments: further ones of timm's model, such as ``drop_path_rate`` and ``img_size``. Images can have any size
            where timm has ``dynamic_img_size`` or ``strict_img_size`` for the model, or no fixed size.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.

    Example:
        >>> import torch
        >>> from mmattn.backbones import TimmBackbone
        >>> backbone = TimmBackbone('convnext_atto', out_indices=(1, 2, 3)).eval()
        >>> [tuple(m.shape) for m in backbone(torch.zeros(1, 3, 64, 96))]
        [(1, 80, 8, 12), (1, 160, 4, 6), (1, 320, 2, 3)]
    """

    weights = timm_backbone_weights

    def __init__(
        self,
        name: str,
        out_indices: Sequence[int] | None = None,
        in_channels: int = 3,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
        **arguments,
    ) -> None:
        check_whole('in_channels', in_channels)
        if not isinstance(name, str):
            raise InputError(f'name must be that of a model of timm, not {name!r}')
        release = timm_release(name)  # refuses unknown names
        given = dict(arguments, name=name, in_channels=in_channels)
        with torch.device('meta'):
            whole = timm_model(**given)
        known = {key for cls in type(whole).__mro__ for key in inspect.signature(cls.__init__).parameters}
        any_size = {key: value for key, value in ANY_SIZE.items() if key in known}
        stages = getattr(whole.feature_info, 'info', whole.feature_info)
        strides = [stage['reduction'] for stage in stages]
        if out_indices is None:
            out_indices = tuple({stride: i for i, stride in enumerate(strides) if stride >= 4}.values())
        channels = [stage['num_chs'] for stage in stages]
        super().__init__(channels, out_indices, in_channels, with_cp=with_cp, init_cfg=init_cfg, strides=strides)
        check_flags(norm_eval=norm_eval)
        self.norm_eval = norm_eval
        self.arguments = {**any_size, **given}
        self.model = timm_model(**self.arguments)
        self.model.prune_intermediate_layers(list(self.out_indices), prune_norm=True)
        self.model.is_init = True  # MMEngine would call its init_weights again, without its arguments.
        embed = getattr(self.model, 'patch_embed', None)
        if any_size and hasattr(embed, 'dynamic_img_pad'):
            embed.dynamic_img_pad = True  # It is no argument of Swin.
        #: what divides the sides of all images that the model takes
        self.divisor = strides[-1] if any_size and hasattr(embed, 'backbone') else 1  # hybrids of a CNN and a ViT
        #: height and width of the images, where the model takes no others
        self.img_size: tuple[int, int] | None = None
        if release is not None and release.fixed_input_size and not any_size:
            side = arguments.get('img_size') or release.input_size[1:]
            self.img_size = (side, side) if isinstance(side, int) else tuple(side)
        noted = {key: value for key, value in arguments.items() if key != 'img_size' and not key.endswith('_rate')}
        self.settings = {key: value for key, value in noted.items() if is_setting(value)}
        self.settings['name'] = name.partition('.')[0]
        if with_cp:
            try:
                self.model.set_grad_checkpointing(True)
            except (AssertionError, AttributeError) as error:
                raise ValueError(f'timm cannot compute {name} again in the backward pass: leave out with_cp') from error
        self.frozen_stages = frozen_stages  # calls train()

    def _checked_frozen_stages(self, number: int) -> int:
        check_whole('frozen_stages', number, -1)
        if number >= 0 and number >= (count := len(self.stage_modules())):
            why = '' if count else f', since timm has no groups of layers for {self.settings["name"]}'
            raise ValueError(f'frozen_stages must be from -1 to {count - 1}{why}, not {number}')
        return number

    def _groups(self, coarse: bool) -> dict[str, int]:
        """The group of layers, as timm numbers them, by name of module or parameter; {} if timm has none."""
        from timm.models._manipulate import group_with_matcher

        try:
            matcher = self.model.group_matcher(coarse=coarse)
        except (AssertionError, AttributeError):
            return {}
        named = {**dict(self.model.named_modules()), **dict(self.model.named_parameters())}
        return group_with_matcher(((name, None) for name in named), matcher, reverse=True)

    def stage_modules(self) -> list[list[nn.Module]]:
        """The groups of layers that have parameters, the stem first; [] if timm has none for the model."""
        groups, parameters = self._groups(coarse=True), dict(self.model.named_parameters())
        count = 1 + max((groups[name] for name in parameters if name in groups), default=-1)
        found: list[list[nn.Module]] = [[] for _ in range(count)]
        for name, module in self.model.named_modules():
            if groups.get(name, count) < count:
                found[groups[name]].append(module)
        for i, modules in enumerate(found):  # such as positions, which belong to no module but the model
            modules.append(nn.ParameterList([p for name, p in parameters.items() if groups[name] == i]))
        return found

    @property
    def stem_tensors(self) -> list[str]:
        first = self.model.pretrained_cfg.get('first_conv') or ()
        return [f'model.{name}.weight' for name in ([first] if isinstance(first, str) else first)]

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """As timm's ``group_matcher`` has it: the stem has depth 0, then blocks or stages have 1, 2 and so on.

        Raises:
            ValueError: if timm has no groups of layers for the model.
        """
        groups = self._groups(coarse=False)
        if not groups:
            raise ValueError(f'timm has no groups of layers for {self.settings["name"]}: leave out layer_decay_rate')
        count = max(groups[name] for name, _ in self.model.named_parameters()) + 2
        in_backbone = param_name.startswith(prefix)
        name = param_name.removeprefix(prefix).removeprefix('model.')
        return groups.get(name, count - 1) if in_backbone else count - 1, count

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output i, (B, C_i, h, w), of the stride s_i about H / s_i and W / s_i.

        Raises:
            InputError: for images of a size that timm's model does not take.
        """
        self.check_images(x)
        if self.img_size is not None and tuple(x.shape[2:]) != self.img_size:
            raise InputError(
                f'{self.settings["name"]} of timm takes images of {self.img_size} pixels only, not '
                f'{tuple(x.shape[2:])}: resize and pad to this size, or give img_size=(height, width) if the model has '
                'this argument'
            )
        if any(side % self.divisor for side in x.shape[2:]):  # timm rounds the sides of the map down, its CNN up
            raise InputError(
                f'{self.settings["name"]} of timm takes images whose sides are multiples of {self.divisor} pixels, not '
                f'{tuple(x.shape[2:])}: pad them, as by pad_size_divisor={self.divisor} of the data preprocessor'
            )
        maps = self.model.forward_intermediates(
            x, indices=list(self.out_indices), norm=False, output_fmt='NCHW', intermediates_only=True
        )
        return tuple(each.contiguous() for each in maps)
